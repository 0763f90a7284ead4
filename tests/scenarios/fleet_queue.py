"""Scenario 20's world: 64 pools, thousands queued, cancels, and a blocked head before every pool."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.types import (
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Gone,
    Load,
    LoadSample,
    PoolFacts,
    PoolUp,
    Progress,
    Request,
    Tick,
)

POOLS = 64
POOL_TOKENS = 186_624
LIMITS = Limits(max_queue_requests=1_000_000, max_queue_tokens=10**12)


@dataclass(slots=True)
class Crowded:
    """A controller that nobody else drives. `running` and `queued` are what the test knows of it."""

    controller: Controller
    rng: random.Random
    now: float
    running: list[str]
    queued: list[str]
    count: int = 0

    def step(self, event: Event) -> None:
        for action in self.controller.step(self.now, event):
            if isinstance(action, Dispatch):
                self.running.append(action.rid)

    def request(self, *, long: bool) -> Request:
        """A long prompt, or a short one; of one of four tenants."""
        self.count += 1
        tokens = self.rng.randint(30_000, 120_000) if long else self.rng.randint(100, 4000)
        tenant = f"tenant {self.rng.randrange(4)}"
        return Request(f"r{self.count}", tokens, 500, tenant=tenant, wait_limit_seconds=1e9, ignore_eos=True)


def crowded(queued: int, *, seed: int = 1) -> Crowded:
    """All pools full, a long head blocked before each, and so many queued behind."""
    world = Crowded(Controller(LIMITS), random.Random(seed), 0.0, [], [])
    facts = PoolFacts(POOL_TOKENS, POOL_TOKENS - 6, 1_000_000, 256)
    for number in range(POOLS):
        world.step(PoolUp(f"pool {number}", facts))
    # two longs that last fill each pool, so that all that comes has to wait
    for _ in range(2 * POOLS):
        request = Request(f"resident {world.count}", 85_000, 4096, wait_limit_seconds=1e9, ignore_eos=True)
        world.count += 1
        world.step(Arrival(request))
        world.step(FirstToken(request.rid))
    world.running.clear()
    while len(world.queued) < queued:
        request = world.request(long=world.count % 10 == 0)
        sent = len(world.running)
        world.step(Arrival(request))
        if len(world.running) == sent:
            world.queued.append(request.rid)
    return world


def events(world: Crowded, number: int) -> Iterator[Event]:
    """What happens to a busy proxy; as many leave the queue as come."""
    rng = world.rng
    for turn in range(number):
        world.now += 0.001
        kind = turn % 8
        if kind in (0, 4):
            request = world.request(long=turn % 80 == 0)
            world.queued.append(request.rid)
            yield Arrival(request)
        elif kind in (1, 5):
            index = rng.randrange(len(world.queued))
            world.queued[index], world.queued[-1] = world.queued[-1], world.queued[index]
            yield Gone(world.queued.pop(), reached_engine=False)
        elif kind == 2 and world.running:
            yield FirstToken(rng.choice(world.running))
        elif kind == 3 and world.running:
            yield Finished(world.running.pop(rng.randrange(len(world.running))), None, 500)
        elif kind == 6:
            sample = LoadSample(world.now, 170_000, 4, 0, 0)
            yield Load(f"pool {rng.randrange(POOLS)}", sample)
        elif world.running:
            yield Progress({rng.choice(world.running): rng.randrange(100)})
        else:
            yield Tick()
