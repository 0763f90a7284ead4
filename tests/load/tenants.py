"""Two tenants, one sending ten times the load of the other."""

import random
from collections.abc import Mapping

from tests.load.figures import Row, compare, inform
from tests.load.scenario import DIRECT, PROXIED, Engine, Mix, Runs, Scenario, Way
from tests.load.verdicts import safety_rows, ttft
from tests.load.workload import TENANT_HEADER, Ask, Client, Workload, poisson_times

SECONDS = 120.0
DRAIN_SECONDS = 30.0  # for the light tenant's last answers; the heavy one's queue is cut off
SHORTS_PER_SECOND, LONGS_PER_SECOND = 0.4, 0.12  # of the light tenant
TIMES = 10
SLOWER_MAX = 1.3

ALONE = Way(
    "alone",
    proxied=True,
    change=lambda workload: workload.only(lambda client: client.asks[0].tenant == "light"),
)


def tenants(mix: Mix) -> Workload:
    """The light one fills a tenth of the server, the heavy one more than all of it; 120 s."""
    draw = mix.draw()
    seconds = SECONDS * mix.scale
    clients = [*_tenant("light", 1, draw, mix, seconds), *_tenant("heavy", TIMES, draw, mix, seconds)]
    return Workload(tuple(clients), seconds=seconds + DRAIN_SECONDS)


def _tenant(name: str, times: int, draw: random.Random, mix: Mix, seconds: float) -> list[Client]:
    clients = []
    for at in poisson_times(draw, times * SHORTS_PER_SECOND, seconds):
        ask = Ask(f"{name} short", draw.randint(150, 450), 150, draw.getrandbits(32), tenant=name)
        clients.append(Client(at, (ask,)))
    for at in poisson_times(draw, times * LONGS_PER_SECOND, seconds):
        ask = Ask(f"{name} 16K", mix.long(16_000), 200, draw.getrandbits(32), tenant=name)
        clients.append(Client(at, (ask,)))
    return clients


def told_apart(_: Runs) -> Mapping[str, str]:
    """The tenant is named by a header, as a gateway would."""
    return {"PROXY_MAX_QUEUE_SECONDS": "600", "PROXY_TENANT_HEADER": TENANT_HEADER}


def judge_tenants(runs: Runs) -> list[Row]:
    direct, alone, proxied = (runs[way.name] for way in (DIRECT, ALONE, PROXIED))
    rows = []
    for kind, required in (("light short", SLOWER_MAX), ("light 16K", None), ("heavy short", None)):
        before = alone if kind.startswith("light") else direct
        against = "alone" if before is alone else "direct"
        medians = ttft(before, kind, 0.5), ttft(proxied, kind, 0.5)
        rows.append(compare(f"{kind} TTFT p50, against {against}", *medians, required))
    for kind in ("light short", "light 16K"):
        medians = ttft(direct, kind, 0.5), ttft(proxied, kind, 0.5)
        rows.append(compare(f"{kind} TTFT p50, against direct", *medians, None))
    lost = [sum(outcome.cut for outcome in run.outcomes) for run in (direct, proxied)]
    rows.append(inform("still waiting when the load was over", *map(str, lost)))
    return [*rows, *safety_rows(proxied, direct)]


TENANTS_SCENARIO = Scenario(
    "tenants",
    "two tenants, one sending ten times the load: the other is served as if it were alone",
    tenants,
    judge_tenants,
    engine=Engine(speedup=1.0),
    settings=told_apart,
    ways=(DIRECT, ALONE, PROXIED),
)
