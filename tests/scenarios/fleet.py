"""Several pools before one controller, in virtual time: simple machines, one prefill after another."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    PoolFacts,
    PoolUp,
    Refuse,
    Request,
    Tick,
)
from tests.scenarios.policies import Make

TICK_SECONDS = 0.25
PREFILL_TOKENS_PER_SECOND = 20_000  # as the controller believes at first
DECODE_SECONDS = 0.02  # a token


@dataclass
class Seen:
    """What became of one request."""

    request: Request
    arrived_at: float
    output_tokens: int
    pool: str = ""
    sent_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    refused: Refuse | None = None

    @property
    def ttft_seconds(self) -> float:
        assert self.first_token_at is not None, f"{self.request.rid} was never answered"
        return self.first_token_at - self.arrived_at


@dataclass
class Fleet:
    """`pools` by name. `do` makes something happen at a time, `run` lets time pass."""

    make: Make
    pools: Mapping[str, PoolFacts]
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.controller: Controller = self.make(self.limits)
        self.now = 0.0
        self.seen: dict[str, Seen] = {}
        self._numbers = count(1)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._prefill_free_at = dict.fromkeys(self.pools, 0.0)
        for name, facts in self.pools.items():
            self.step(PoolUp(name, facts))

    def do(self, at: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (at, next(self._numbers), lambda: void(what())))

    def run(self, until: float) -> None:
        """With a tick every quarter of a second, as in the live proxy."""
        while self.now < until:
            at = min(until, self.now + TICK_SECONDS)
            while self._agenda and self._agenda[0][0] <= at:
                self.now, _, what = heapq.heappop(self._agenda)
                what()
            self.now = at
            self.step(Tick())

    def arrive(self, prompt_tokens: int, output_tokens: int, *, name: str = "r", **fields: Any) -> Seen:
        """A request comes now; the length of its output is known to the machine alone."""
        known: dict[str, Any] = {"wait_limit_seconds": 600.0, "max_tokens": output_tokens}
        request = Request(f"{name} {next(self._numbers)}", prompt_tokens, **{**known, **fields})
        seen = self.seen[request.rid] = Seen(request, self.now, output_tokens)
        self.step(Arrival(request))
        return seen

    def step(self, event: Event) -> None:
        for action in self.controller.step(self.now, event):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        seen = self.seen[action.rid]
        if isinstance(action, Refuse):
            seen.refused = action
        elif isinstance(action, Dispatch):
            assert seen.sent_at is None, f"{action.rid} was sent twice"
            assert seen.request.prompt_tokens < self.pools[action.pool].pool_tokens, "it can never fit there"
            seen.pool, seen.sent_at = action.pool, self.now
            uncached = self.controller.jobs[action.rid].uncached_tokens
            begun = max(self.now, self._prefill_free_at[action.pool])
            first = self._prefill_free_at[action.pool] = begun + uncached / PREFILL_TOKENS_PER_SECOND
            self.do(first, lambda: self._first(seen))
            self.do(first + seen.output_tokens * DECODE_SECONDS, lambda: self._end(seen))

    def _first(self, seen: Seen) -> None:
        seen.first_token_at = self.now
        self.step(FirstToken(seen.request.rid))

    def _end(self, seen: Seen) -> None:
        seen.ended_at = self.now
        self.step(Finished(seen.request.rid, None, seen.output_tokens))

    def check_empty(self) -> None:
        """All were answered and nothing is charged any more."""
        open_requests = [
            s.request.rid for s in self.seen.values() if s.ended_at is None and s.refused is None
        ]
        assert open_requests == []
        assert self.controller.jobs == {}
        assert len(self.controller.tenants) == 0
        for line in self.controller.lines.values():
            assert line.pool.committed_tokens == line.pool.running_slots == len(line) == 0


def void(_: object) -> None:
    """Throws a result away."""
