"""The loads that the proxy is held to, by name."""

from tests.load.agents import AGENTS_SCENARIO
from tests.load.batches import BATCHES
from tests.load.overload import OVERLOAD_SCENARIO
from tests.load.stories import STORIES
from tests.load.tenants import TENANTS_SCENARIO

SCENARIOS = {
    scenario.name: scenario
    for scenario in (*STORIES, *BATCHES, AGENTS_SCENARIO, TENANTS_SCENARIO, OVERLOAD_SCENARIO)
}
