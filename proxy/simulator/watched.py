"""A controller under observation: what it decided, and which of its rules held somebody back.

Looks at the controller after each step and changes nothing: watched or not, it decides the same.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proxy.admission.controller import Controller
from proxy.admission.job import Job
from proxy.admission.line import Line
from proxy.admission.types import Action, Dispatch, Event, PoolUp, Refuse, Slice


class Cause(StrEnum):
    """Why a request that was next in its lane did not go at once: the first of these that says no."""

    BACKPRESSURE = "the server's own queue was full"
    MEMORY = "memory: the pool's committed tokens (C)"
    ENGINE = "the engine's own admission formula (E)"
    SLOTS = "running slots (S)"
    LONG_CONTEXTS = "long contexts resident at once"
    PREFILL = "a prefill under way"
    GATE = "a blocked long request it must not pass"
    TENANT = "its tenant's share, others waiting"


_LEDGERS = {"C": Cause.MEMORY, "E": Cause.ENGINE, "S": Cause.SLOTS}


@dataclass(frozen=True, slots=True)
class Decision:
    """A request was sent, or refused."""

    at: float
    rid: str
    dispatched: bool


@dataclass(slots=True)
class Seen:
    """What was counted, and the largest values seen."""

    decisions: list[Decision] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)  # by reason
    rules: Counter[str] = field(default_factory=Counter)  # by which requests were let go
    held: defaultdict[Cause, set[str]] = field(default_factory=lambda: defaultdict(set))
    sliced: Counter[str] = field(default_factory=Counter)  # slices by request
    slice_misses: int = 0
    gate_closures: int = 0
    gate_closed_seconds: float = 0.0
    most: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by what it is
    lowest_budget_tokens: int = 0  # retractions lower it

    def at_most(self, **values: float) -> None:
        """Keeps each value where it is the largest so far."""
        for name, value in values.items():
            self.most[name] = max(value, self.most[name])


class Watched:
    """Stands before a controller. `on_step` hears the time of every step.

    `pool_tokens` is the operator's word on the pool's size, which replaces the server's.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        pool_tokens: int | None = None,
        on_step: Callable[[float], None] = lambda now: None,
    ) -> None:
        self.controller = controller
        self.seen = Seen()
        self._pool_tokens = pool_tokens
        self._on_step = on_step
        self._gate_closed_at: dict[str, float] = {}

    def step(self, now: float, event: Event) -> Sequence[Action]:
        """As the controller's."""
        if isinstance(event, PoolUp) and self._pool_tokens is not None:
            event = replace(event, facts=replace(event.facts, pool_tokens=self._pool_tokens))
        actions = self.controller.step(now, event)
        self._note(now, actions)
        for line in self.controller.lines.values():
            self._look(now, line)
        self._on_step(now)
        return actions

    def next_wakeup(self, now: float) -> float | None:
        """As the controller's."""
        return self.controller.next_wakeup(now)

    def levels(self) -> Mapping[str, float]:
        """The ledgers now, to be kept with the samples of a replay."""
        pools = [line.pool for line in self.controller.lines.values()]
        return {"committed_tokens": float(sum(pool.committed_tokens for pool in pools))}

    def _note(self, now: float, actions: Sequence[Action]) -> None:
        seen = self.seen
        for action in actions:
            match action:
                case Dispatch():
                    seen.rules[action.rule] += 1
                    seen.at_most(wait_seconds=action.waited_seconds)
                case Refuse():
                    seen.refusals[action.reason.value] += 1
                    seen.at_most(predicted_wait_seconds=action.predicted_wait_seconds)
                case Slice():
                    seen.sliced[action.rid] += 1
                    continue
                case _:
                    continue
            seen.decisions.append(Decision(now, action.rid, isinstance(action, Dispatch)))

    def _look(self, now: float, line: Line) -> None:
        seen, pool = self.seen, line.pool
        seen.at_most(
            committed_tokens=pool.committed_tokens,
            short_tokens=pool.short_tokens,
            engine_tokens=round(pool.engine_tokens),
            running_slots=pool.running_slots,
            long_contexts=sum(job.long for job in pool.jobs.values()),
            queue_requests=len(line),
            queue_tokens=line.waiting_tokens,
            bypassed_tokens=line.gate.bypassed_tokens,
        )
        seen.lowest_budget_tokens = min(seen.lowest_budget_tokens or pool.budget_tokens, pool.budget_tokens)
        seen.slice_misses = pool.slicing.misses
        self._watch_gate(now, line)
        for job in _heads(line):
            seen.held[_cause(line, job, now)].add(job.rid)
            if job.long:
                seen.at_most(blocked_seconds=now - job.arrived_at)

    def _watch_gate(self, now: float, line: Line) -> None:
        closed_at = self._gate_closed_at.get(line.pool.name)
        closed = line.gate.closed(now)
        if closed and closed_at is None:
            self._gate_closed_at[line.pool.name] = now
            self.seen.gate_closures += 1
        elif not closed and closed_at is not None:
            self.seen.gate_closed_seconds += now - self._gate_closed_at.pop(line.pool.name)


def _heads(line: Line) -> Iterator[Job]:
    for head in (line.shorts.head(), line.gate.head or line.longs.head()):
        if head is not None:
            yield head


def _cause(line: Line, job: Job, now: float) -> Cause:
    pool = line.pool
    if now < pool.hold_until:
        return Cause.BACKPRESSURE
    lacks = pool.lacks(job, line.reserve_of(job))
    if lacks:
        return _LEDGERS[lacks[0]]
    if job.long:
        most = pool.limits.max_long_contexts
        full = most is not None and sum(other.long for other in pool.jobs.values()) >= most
        return Cause.LONG_CONTEXTS if full else Cause.PREFILL
    if pool.short_backlog_tokens or not pool.timeline.open_for_shorts(now):
        return Cause.PREFILL
    tenant = job.request.tenant
    several = line.shorts.others_wait(tenant) or line.longs.others_wait(tenant)
    return Cause.TENANT if several and not line.gate.closed(now) else Cause.GATE
