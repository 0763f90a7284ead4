"""The loads of `make bench`, small enough for every change: direct and proxied, held to the same table.

Short runs on two shared cores are noisy, so ratios of times get the slack that `SLACK` gives; what
is no matter of speed (failures, ledger, retractions, the engine's queue) gets none. The 64K prompts
get more: on two cores each decode step takes longer for every sequence in it, so serving the shorts
promptly slows the longs, and in a load of half the size the giant then comes before half of them.
"""

from pathlib import Path

import pytest

from tests.load.figures import Row, table
from tests.load.runs import run_direct, run_proxied
from tests.load.scenario import Mix, Runs, Scenario
from tests.load.scenarios import SCENARIOS
from tests.sglang.server import SGLangServer

SLACK = 1.5
# Twenty bodies of 350 KB at once are counted beside an engine that takes a core and a half.
SLACKS = {"64K TTFT mean": 2.5, "refused after the last byte, p99": 5.0}
SCALES = {"story": 0.5, "story-eos": 0.5, "outputs": 0.35, "batch30": 0.2, "refusal": 0.4}


def play(scenario: Scenario, server: SGLangServer, folder: Path) -> Runs:
    workload = scenario.build(Mix(seed=11, scale=SCALES[scenario.name]))
    runs = {"direct": run_direct(server, workload)}
    settings = scenario.settings(runs)
    return runs | {"proxied": run_proxied(server, workload, settings, log_path=folder / "proxy.log")}


def fails(row: Row) -> bool:
    if row.value is None or row.limit is None:
        return row.ok is False
    return row.value > row.limit * SLACKS.get(row.figure, SLACK)


@pytest.mark.parametrize("name", SCALES)
def test_the_proxied_load_keeps_what_is_required(name: str, server: SGLangServer, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    rows = scenario.judge(play(scenario, server, tmp_path))
    print(f"\n{name}: {scenario.summary}\n{table(rows)}")
    assert not [row.figure for row in rows if fails(row)], f"\n{table(rows)}"
