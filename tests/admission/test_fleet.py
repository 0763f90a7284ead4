"""What is noted of many lines is what a walk over them finds; and the choice among them is a good one."""

import random
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import pytest

from proxy.admission.controller import Controller
from proxy.admission.fleet import FEW_LINES
from proxy.admission.job import Job, State
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.types import (
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Gone,
    Lane,
    Load,
    LoadSample,
    PoolDown,
    PoolFacts,
    PoolGone,
    PoolLeaving,
    PoolUp,
    Progress,
    Request,
    Segment,
    Tick,
)
from proxy.simulator.records import quantile
from tests.scenarios.fleet_queue import CrowdedFleet
from tests.scenarios.policies import Make

SHARED = tuple(Segment(bytes([number]), 1000) for number in range(40))


class Random:
    """A controller of many pools, and whatever may happen to it, by chance."""

    def __init__(self, seed: int, pools: int, tenants: str = "a") -> None:
        self.rng = random.Random(seed)
        self.tenants = tenants
        self.controller = Controller(Limits(long_tier_tokens=60_000))
        self.now = 0.0
        self.count = 0
        self.pools = [f"p{number}" for number in range(pools)]
        for pool in self.pools:
            self.controller.step(0.0, PoolUp(pool, self.facts()))

    def facts(self) -> PoolFacts:
        size = self.rng.choice([60_000, 186_624, 400_000])
        models = self.rng.choice([("m",), ("m",), ("m", "n")])
        return PoolFacts(size, models=models, tier=self.rng.choice(["default", "default", "long"]))

    def request(self) -> Request:
        rng = self.rng
        self.count += 1
        tokens = rng.choice([rng.randint(50, 6000), rng.randint(50, 6000), rng.randint(9000, 180_000)])
        segments = SHARED[: rng.randint(0, min(40, tokens // 1000))]
        model, tenant = rng.choice(["m", "n"]), rng.choice(self.tenants)
        return Request(
            f"r{self.count}",
            tokens,
            rng.choice([50, 400]),
            model=model,
            tenant=tenant,
            wait_limit_seconds=rng.choice([5.0, 60.0, 600.0]),
            segments=rng.choice([(), segments]),
            session=rng.choice(["", "x", "y"]),
        )

    def events(self, number: int) -> Iterator[Event]:
        rng, controller = self.rng, self.controller
        for _ in range(number):
            self.now += rng.choice([0.0, 0.01, 0.05, 0.3])
            rid = rng.choice(sorted(controller.jobs)) if controller.jobs else ""
            ran = rid and controller.jobs[rid].state is not State.QUEUED
            pool = rng.choice(self.pools)
            sample = LoadSample(self.now, rng.randint(0, 60_000), 1, 0, 0)
            may: list[Event] = [
                *[Arrival(self.request())] * 6,
                FirstToken(rid),
                Progress({rid: rng.randint(0, 100)}) if ran else Tick(),
                Finished(rid, None, rng.randint(1, 400)) if ran else Tick(),
                Finished(rid, None, rng.randint(1, 400)) if ran else Tick(),
                Gone(rid, reached_engine=rng.random() < 0.5),
                Load(pool, sample),
                Tick(),
                PoolGone(pool),
                PoolUp(pool, self.facts()),
                PoolUp(pool, self.facts()),
                PoolDown(pool),
                PoolLeaving(pool),
            ]
            yield rng.choice(may)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pools", [3, FEW_LINES + 4])
def test_the_notes_say_what_a_walk_over_all_lines_would_find(seed: int, pools: int) -> None:
    world = Random(seed, pools)
    controller, fleet = world.controller, world.controller.fleet
    for event in world.events(400):
        controller.step(world.now, event)
        lines = list(fleet.lines.values())
        assert fleet.waiting_requests == sum(map(len, lines))
        assert fleet.waiting_tokens == sum(line.waiting_tokens for line in lines)
        assert fleet.pool_tokens == sum(line.pool.facts.pool_tokens for line in lines)
        walked = [at for line in lines if (at := line.wakeup(world.now)) is not None]
        assert fleet.wakeup(world.now) == min(walked, default=None)
        if not fleet.few:
            for long in (False, True):
                ranked = [line for kind in fleet.kinds for _, line in fleet.soonest(kind, long=long)]
                assert sorted(line.pool.name for line in ranked) == sorted(fleet.lines)
            for kind in fleet.kinds:
                standings = [standing for standing, _ in fleet.soonest(kind, long=False)]
                assert standings == sorted(standings)


# --- the choice among many ------------------------------------------------------------------------


def losses(make: Make, pools: int, queued_each: int = 50) -> list[float]:
    """What each choice costs beside the best: 0 is the best pool, 1 the worst."""
    fleet = CrowdedFleet(queued_each * pools, pools=pools, make=make)
    controller, found = fleet.controller, []
    for event in fleet.life(1000):
        if isinstance(event, Arrival):
            request, now = event.request, fleet.now
            job = Job(request, now, now + request.wait_limit_seconds, Lane.SHORT, request.prompt_tokens)
            seconds = {
                line.pool.name: controller.router._cost(line, job, "", now)
                for line in controller.lines.values()
            }
            best, worst = min(seconds.values()), max(seconds.values())
            chosen = controller.route(job, now)
            assert chosen is not None
            found.append((seconds[chosen.pool.name] - best) / max(1e-9, worst - best))
        fleet.step(event)
    return found


def check_choice(make: Make) -> None:
    found = losses(make, 64)
    assert fmean(found) <= 0.08, "most go where they wait much longer"
    assert quantile(found, 0.9) <= 0.15, "some go where they wait much longer"


class TheFirst(Controller):
    """All to the first."""

    def route(self, job: Job, now: float) -> Line:
        return next(iter(self.lines.values()))


class InTurn(Controller):
    """One pool after the other."""

    def route(self, job: Job, now: float) -> Line:
        return list(self.lines.values())[len(self.jobs) % len(self.lines)]


def test_of_many_pools_it_chooses_one_that_is_hardly_worse_than_the_best() -> None:
    check_choice(Controller)


@pytest.mark.parametrize("wrong", [TheFirst, InTurn])
def test_the_check_of_the_choice_fails_for_wrong_policies(wrong: Make) -> None:
    with pytest.raises(AssertionError, match="wait much longer"):
        check_choice(wrong)


def test_of_few_pools_it_chooses_the_best() -> None:
    assert max(losses(Controller, FEW_LINES)) <= 0.001


# --- many at once -----------------------------------------------------------------------------------


def many_pools(number: int) -> Controller:
    controller = Controller(Limits())
    for index in range(number):
        controller.step(0.0, PoolUp(f"p{index}", PoolFacts(100_000)))
    return controller


def test_who_waits_for_a_pool_that_goes_down_is_spread_over_the_others() -> None:
    controller = many_pools(FEW_LINES + 4)
    for index in range(FEW_LINES + 4):
        controller.step(1.0, Arrival(Request(f"runs {index}", 85_000, 1000, wait_limit_seconds=600.0)))
    for index in range(22):
        controller.step(
            1.0, Arrival(Request(f"waits {index}", 85_000, 100, pinned_pool="p0", wait_limit_seconds=1e6))
        )
    waiting = controller.lines["p0"]
    for job in waiting.jobs():
        job.request = replace(job.request, pinned_pool="")
    controller.step(1.5, PoolDown("p0"))
    assert [len(line) for line in controller.lines.values()] == [0] + [2] * (FEW_LINES + 3)


def test_who_waits_for_any_pool_finds_the_first_of_many_that_comes_up() -> None:
    controller = many_pools(FEW_LINES)
    controller.step(1.0, Arrival(Request("runs", 85_000, 1000)))
    (first,) = (line.pool.name for line in controller.lines.values() if line.pool.jobs)
    for index in range(FEW_LINES):
        if f"p{index}" != first:
            controller.step(1.0, PoolDown(f"p{index}"))
    controller.step(1.0, Arrival(Request("waits", 85_000, 100, wait_limit_seconds=600.0)))
    controller.step(1.0, PoolDown(first))
    actions = controller.step(2.0, PoolUp("another", PoolFacts(100_000)))
    assert [(action.rid, action.pool) for action in actions if isinstance(action, Dispatch)] == [
        ("waits", "another")
    ]
