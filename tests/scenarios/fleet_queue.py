"""Scenario 20's world: many pools, thousands queued, cancels, and a blocked head before every pool."""

import random
from collections.abc import Iterator

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
)
from tests.scenarios.policies import Make

FACTS = PoolFacts(186_624, 186_618, 1_000_000, 256)
LIMITS = Limits(max_queue_requests=1_000_000, max_queue_tokens=10**12)
TENANTS = 4
FOR_EVER_SECONDS = 1e9


class CrowdedFleet:
    """Two longs that last hold each pool, a third is blocked before it, and `queued` wait behind."""

    def __init__(self, queued: int, *, pools: int, make: Make = Controller, seed: int = 1) -> None:
        self.controller = make(LIMITS)
        self.now = 0.0
        self.queued: list[str] = []
        self.running: list[str] = []
        self._pools = [f"pool {number}" for number in range(pools)]
        self._rng = random.Random(seed)
        self._count = 0
        for pool in self._pools:
            self.step(PoolUp(pool, FACTS))
        for _ in self._pools * 2:
            resident = self._request(85_000, 4096)
            self.step(Arrival(resident))
            self.step(FirstToken(resident.rid))
        self.running.clear()
        while len(self.queued) < queued:
            self.step(self.arrival(long=len(self.queued) < pools))

    def step(self, event: Event) -> None:
        """The controller hears it; who is sent runs from then on."""
        for action in self.controller.step(self.now, event):
            if isinstance(action, Dispatch):
                self.running.append(action.rid)

    def arrival(self, *, long: bool = False) -> Arrival:
        """A request that will have to wait."""
        tokens = self._rng.randint(60_000, 120_000) if long else self._rng.randint(7000, 8000)
        request = self._request(tokens, 500)
        self.queued.append(request.rid)
        return Arrival(request)

    def cancel(self) -> Gone:
        """Somebody who waits leaves."""
        index = self._rng.randrange(len(self.queued))
        self.queued[index], self.queued[-1] = self.queued[-1], self.queued[index]
        return Gone(self.queued.pop(), reached_engine=False)

    def life(self, steps: int) -> Iterator[Event]:
        """What a busy proxy hears. As many leave the queue as come, so that it keeps its length."""
        rng = self._rng
        for turn in range(steps):
            self.now += 0.001
            if turn % 4 == 0:
                yield self.arrival(long=turn % 40 == 0)
            elif turn % 4 == 1:
                yield self.cancel()
            elif turn % 8 == 2 or not self.running:
                yield Load(rng.choice(self._pools), LoadSample(self.now, 170_000, 4, 0, 0))
            elif turn % 8 == 3:
                yield Finished(self.running.pop(rng.randrange(len(self.running))), None, 500)
            elif turn % 8 == 6:
                yield FirstToken(rng.choice(self.running))
            else:
                yield Progress({rng.choice(self.running): rng.randrange(100)})

    def _request(self, prompt_tokens: int, output_tokens: int) -> Request:
        self._count += 1
        return Request(
            f"r{self._count}",
            prompt_tokens,
            output_tokens,
            tenant=f"tenant {self._rng.randrange(TENANTS)}",
            wait_limit_seconds=FOR_EVER_SECONDS,
            ignore_eos=True,
        )
