"""Scenario 20 without a clock: a step costs no more however many wait, and memory is linear.

The microseconds are in `bench_step`: they depend on the machine.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from statistics import fmean
from types import FrameType

import pytest

from proxy.admission.controller import Controller
from proxy.simulator.records import quantile
from tests.scenarios.fleet_queue import CrowdedFleet
from tests.scenarios.policies import Make, RemembersAll, SortsQueue, named

POOLS = 4
FEW, MANY = 400, 4000  # queued: more than are looked at before each pool, and ten times as many
STEPS = 800


def check_20_steps(make: Make) -> None:
    """Ten times as many wait: a step calls hardly more functions, on average and at its worst."""
    few, many = (calls_of_steps(CrowdedFleet(queued, pools=POOLS, make=make)) for queued in (FEW, MANY))
    assert fmean(many) <= 1.3 * fmean(few), f"a step costs {fmean(many) / fmean(few):.1f} times as much"
    longest = quantile(many, 0.99) / quantile(few, 0.99)
    assert longest <= 1.5, f"the p99 of a step costs {longest:.1f} times as much"


def check_20_memory(make: Make) -> None:
    """Each that waits takes the same, and who has left takes none."""
    tracemalloc.start()
    try:
        few, many = (bytes_of(queued, make) for queued in (FEW, MANY))
        assert many <= 1.2 * few * MANY / FEW, "memory is not linear in who waits"
        assert many <= 4096 * MANY
    finally:
        tracemalloc.stop()


def check_20_cancels(make: Make) -> None:
    """Thousands come and leave before their deadline: nothing is kept of them."""
    fleet = CrowdedFleet(FEW, pools=POOLS, make=make)
    tracemalloc.start()
    try:
        churn(fleet, 2000)  # until what is swept out late has been swept out once
        before = tracemalloc.get_traced_memory()[0]
        churn(fleet, 3000)
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept <= 100_000, f"{kept // 3000} bytes are kept of each that has left"


# --- what the checks are made of ----------------------------------------------------------------


def calls_of_steps(fleet: CrowdedFleet) -> list[int]:
    """Function calls of each step: what the work is, whatever the machine does beside it."""
    counts: list[int] = []
    calls = 0

    def count(_: FrameType, kind: str, __: object) -> None:
        nonlocal calls
        calls += kind in ("call", "c_call")

    for event in fleet.life(STEPS):
        calls = 0
        sys.setprofile(count)
        try:
            fleet.step(event)
        finally:
            sys.setprofile(None)
        counts.append(calls)
    return counts


def bytes_of(queued: int, make: Make) -> int:
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    fleet = CrowdedFleet(queued, pools=POOLS, make=make)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    assert len(fleet.queued) == queued
    return used


def churn(fleet: CrowdedFleet, number: int) -> None:
    for _ in range(number):
        fleet.now += 0.001
        fleet.step(fleet.arrival())
        fleet.step(fleet.cancel())
    gc.collect()


# --- the scenario -------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [check_20_steps, check_20_memory, check_20_cancels])
def test_the_cost_of_a_step_and_the_memory_of_the_queue_are_bounded(check: Callable[[Make], None]) -> None:
    check(Controller)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (check_20_steps, SortsQueue, "times as much"),
        (check_20_cancels, RemembersAll, "are kept of each that has left"),
    ],
    ids=named,
)
def test_the_scenario_of_the_step_fails_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
