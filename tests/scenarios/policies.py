"""Wrong policies: each is the controller with one thing done as it must not be done.

They are the reason to trust the scenarios: each scenario names those that it has to catch. Most
are what one would write first, or what other proxies do.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from proxy.admission.backfill import Gate, Rule
from proxy.admission.controller import Controller
from proxy.admission.foreign import ForeignHistory
from proxy.admission.job import Job, State
from proxy.admission.limits import Limits
from proxy.admission.line import Due, Line
from proxy.admission.pool import Pool
from proxy.admission.queue import Charges
from proxy.admission.reservation import Reservation
from proxy.admission.residency import Hold
from proxy.admission.sensor import Sensor
from proxy.admission.types import (
    Action,
    Arrival,
    Drain,
    Event,
    Finished,
    Gone,
    LoadSample,
    PoolDown,
    PoolFacts,
    Reason,
    Refuse,
    Request,
    Requeue,
)

Make = Callable[[Limits], Controller]


def named(value: object) -> str | None:
    """The ids of a table of checks and wrong policies: their names."""
    while isinstance(value, partial):
        value = value.func
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else "because"


class Rebuilt(Controller):
    """The controller with some of its parts replaced."""

    pool_type: ClassVar[type[Pool]] = Pool
    line_type: ClassVar[type[Line]] = Line
    gate_type: ClassVar[type[Gate]] = Gate
    sensor_type: ClassVar[type[Sensor]] = Sensor

    def _new_line(self, name: str, facts: PoolFacts) -> Line:
        pool = self.pool_type(name, facts, self.limits)
        line = self.line_type(pool, self.limits, self.reservation, self.charges)
        line.gate = self.gate_type(pool)
        return line

    def _new_sensor(self, pool: Pool) -> Sensor:
        return self.sensor_type(pool)


# --- who passes a blocked head ------------------------------------------------------------------


class UnboundedSkip(Rebuilt):
    """Whatever fits goes: the head of the line waits for ever."""

    class gate_type(Gate):  # noqa: N801
        def closed(self, now: float) -> bool:
            return False

        def rule_for(self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float) -> Rule:
            return Rule.BYPASS


class StrictOrder(Rebuilt):
    """First come, first served: nobody passes a blocked head."""

    class gate_type(Gate):  # noqa: N801
        def rule_for(
            self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float
        ) -> Rule | None:
            return Rule.FIT if self.head is None or self.head is job else None


class NoGate(Rebuilt):
    """The head's age counts for nothing: shorts keep their share before a giant for ever."""

    class gate_type(Gate):  # noqa: N801
        def _old(self, now: float) -> bool:
            return False

        def _presses(self, head: Job, head_reserve_tokens: int, now: float) -> bool:
            return False


class GateSaysNothing(Rebuilt):
    """The gate closes and nobody can see it."""

    class gate_type(Gate):  # noqa: N801
        def closed(self, now: float) -> bool:
            return False


class BudgetForEver(Rebuilt):
    """The bypass budget is never given back: one blocked head closes the gate for all to come."""

    class gate_type(Gate):  # noqa: N801
        def block(self, head: Job | None) -> None:
            if head is not None:
                super().block(head)

        def rule_for(
            self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float
        ) -> Rule | None:
            rule = super().rule_for(job, reserve_tokens, head_reserve_tokens, now)
            return None if self.closed(now) else rule


class LateBackfill(Controller):
    """Looks for one that may pass a blocked head only when something else happens."""

    def step(self, now: float, event: Event) -> list[Action]:
        self._just_arrived = isinstance(event, Arrival)
        return super().step(now, event)

    def _dispatch(self, now: float, line: Line, actions: list[Action]) -> None:
        if not (self._just_arrived and line.gate.head):
            super()._dispatch(now, line, actions)


class NewestFirst(Rebuilt):
    """The newest is served first."""

    class line_type(Line):  # noqa: N801
        def push(self, job: Job, *, front: bool = False) -> None:
            super().push(job)
            self.queue_of(job)._tenants[job.request.tenant].move_to_end(job.rid, last=False)


class NoShortRoom(Controller):
    """A giant may leave shorts no room at all."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, min_short_room_tokens=0))


class NoExpressShare(Controller):
    """Longs may fill the pool to the brim."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, express_share=0.0))


# --- what the engine counts ---------------------------------------------------------------------


class EngineQueue(Rebuilt):
    """Whatever fits by tokens is sent; the engine may queue it, in its own order."""

    class pool_type(Pool):  # noqa: N801
        def _fits_engine(self, job: Job, prompt_tokens: int, lent: int) -> bool:
            return True

        def _fits_slots(self, job: Job) -> bool:
            return True


class NoSlotsForShorts(Controller):
    """Longs may take every running slot."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, short_slot_share=-1.0))


class OneSlotEach(Rebuilt):
    """A request is one request, whatever its n."""

    class pool_type(Pool):  # noqa: N801
        def _fits_slots(self, job: Job) -> bool:
            slots = self.facts.max_running_requests
            return slots is None or len(self.jobs) < slots


# --- when a charge comes back -------------------------------------------------------------------


class ReleaseAtOnce(Controller):
    """The client is gone, so its charge is: what the engine still holds is booked twice."""

    def _gone(self, now: float, event: Gone, actions: list[Action]) -> Iterable[Line]:
        return super()._gone(now, replace(event, reached_engine=False), actions)


class NeverRelease(Rebuilt):
    """Waits for the end of an aborted request for ever; neither a poll nor time tells it."""

    class sensor_type(Sensor):  # noqa: N801
        def _drained(self, sample: LoadSample) -> list[Job]:
            return []

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, drain_seconds=math.inf))


class SlicesGoOn(Controller):
    """A client that left costs the whole prefill of its prompt."""

    def _gone(self, now: float, event: Gone, actions: list[Action]) -> Iterable[Line]:
        pools = {line.pool: line.pool.sliced for line in self.lines.values()}
        touched = super()._gone(now, event, actions)
        for pool, job in pools.items():
            pool.sliced = job
        return touched


class StaysQueued(Controller):
    """Who left the queue is noticed when its turn comes."""

    def _gone(self, now: float, event: Gone, actions: list[Action]) -> Iterable[Line]:
        job = self.jobs.get(event.rid)
        if job is not None and job.state is State.QUEUED:
            return ()
        return super()._gone(now, event, actions)


class FailuresStay(Controller):
    """Only a request that ended well gives its charge back."""

    def _finish(self, now: float, event: Finished, actions: list[Action]) -> Iterable[Line]:
        return super()._finish(now, event, actions) if event.completed else ()


class FailuresTeach(Controller):
    """What broke off early is learnt as a short output."""

    def _finish(self, now: float, event: Finished, actions: list[Action]) -> Iterable[Line]:
        return super()._finish(now, replace(event, completed=True), actions)


class RetryAtOnce(Controller):
    """A full queue in the engine is tried again at once, with all that wait."""

    def _requeue(self, now: float, event: Requeue, actions: list[Action]) -> Iterable[Line]:
        touched = super()._requeue(now, event, actions)
        for line in self.lines.values():
            line.pool.hold_until = line.pool.backoff_seconds = 0.0
        return touched


class DownForgets(Controller):
    """The queue of a backend that is down is gone with it."""

    def _pool_down(self, now: float, event: PoolDown, actions: list[Action]) -> Iterable[Line]:
        for job in list(self.lines[event.pool].jobs()):
            self._forget(job)
        return super()._pool_down(now, event, actions)


# --- what the ledger believes -------------------------------------------------------------------


class NoReserveGrowth(Controller):
    """An output that outgrows its reserve is not charged for."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.reservation = _Rigid(limits.output_reserve_quantile, limits.output_reserve_cap)


class _Rigid(Reservation):
    def grown_tokens(self, request: Request, generated_tokens: int, reserved_tokens: int) -> int:
        return reserved_tokens


class NoBudget(Rebuilt):
    """Whatever comes is sent."""

    class pool_type(Pool):  # noqa: N801
        @property
        def empty(self) -> bool:
            return True


class PollIsLedger(Controller):
    """Without a fresh poll nothing is known, so nothing is sent."""

    def _dispatch(self, now: float, line: Line, actions: list[Action]) -> None:
        last = self._sensors[line.pool.name].last
        if last is None or now - last.at < 2.0:
            super()._dispatch(now, line, actions)


class NoDrift(Rebuilt):
    """What others use of the backend is none of our business."""

    class sensor_type(Sensor):  # noqa: N801
        def _watch_foreign(self, sample: LoadSample) -> None:
            return


class BelievesAnyPoll(Rebuilt):
    """A poll is news whenever it comes."""

    class sensor_type(Sensor):  # noqa: N801
        def observe(self, now: float, sample: LoadSample) -> tuple[list[Job], list[Job]]:
            return super().observe(sample.at, sample)


class OldFacts(Rebuilt):
    """A backend is asked for its facts once."""

    class pool_type(Pool):  # noqa: N801
        def refresh(self, facts: PoolFacts) -> None:
            first = getattr(self, "_first_facts", None) or facts
            self._first_facts = first
            super().refresh(first)


class RestartRefusesAll(Controller):
    """While the backend is down, whoever waits for it is sent away."""

    def _pool_down(self, now: float, event: PoolDown, actions: list[Action]) -> Iterable[Line]:
        line = self.lines[event.pool]
        for job in list(line.jobs()):
            self._forget(job)
            actions.append(self._refusal(now, job, line, Reason.NO_BACKEND))
        return super()._pool_down(now, event, actions)


class ForeignAdds(Rebuilt):
    """Whatever the server says is in use comes on top of the ledger."""

    class sensor_type(Sensor):  # noqa: N801
        def _watch_foreign(self, sample: LoadSample) -> None:
            self._pool.foreign_tokens = sample.used_tokens


class ForeignBehindReserves(Rebuilt):
    """Only what exceeds the whole ledger is somebody else's: reserves and holds hide it.

    Nor does the engine's queue say anything, which would make up for a part.
    """

    class sensor_type(Sensor):  # noqa: N801
        def _watch_queueing(self, now: float, last: LoadSample, sample: LoadSample) -> None:
            pass

        def _watch_foreign(self, sample: LoadSample) -> None:
            pool = self._pool
            ours = pool.committed_tokens + pool.held_tokens
            pool.foreign_tokens = max(0, sample.used_tokens - ours)


class PayerTakesAll(Rebuilt):
    """The charge of a shared prefix leaves with the request that brought it."""

    class pool_type(Pool):  # noqa: N801
        def release(self, job: Job) -> None:
            paid = sum(s.tokens for s, pays in zip(job.request.segments, job.paying, strict=False) if pays)
            super().release(job)
            self.prefix.charged_tokens = max(0, self.prefix.charged_tokens - paid)


class EachPays(Rebuilt):
    """Nobody rides: every request is charged for its whole prompt."""

    class pool_type(Pool):  # noqa: N801
        def admit(self, job: Job, now: float, reserve_tokens: int, *, sliced: bool = False) -> None:
            job.request = replace(job.request, segments=())
            super().admit(job, now, reserve_tokens, sliced=sliced)


class HoldForgotten(Rebuilt):
    """A context is believed to stay in the cache by itself."""

    class pool_type(Pool):  # noqa: N801
        def hold(self, hold: Hold) -> None:
            return


class HoldBesideCharge(Rebuilt):
    """What is held for a conversation is held beside its next turn, too."""

    class pool_type(Pool):  # noqa: N801
        @property
        def held_tokens(self) -> int:
            return sum(hold.tokens for hold in self.holds)

        @property
        def effective_tokens(self) -> int:
            return self.committed_tokens + self.held_tokens + self.foreign_tokens

        def drop_hold(self, hold: Hold) -> None:
            if not hold.conversation.running:
                super().drop_hold(hold)


# --- how one is refused -------------------------------------------------------------------------


class NeverRefuses(Controller):
    """Who comes may wait, however long it will be."""

    def _refuse_hopeless(self, now: float, rid: str, actions: list[Action]) -> None:
        return


class RetryAfterConstant(Controller):
    """Come back in a second, whoever you are."""

    def _refusal(self, now: float, job: Job, line: Line | None, reason: Reason) -> Refuse:
        return replace(super()._refusal(now, job, line, reason), retry_after_seconds=1.0)


class RetryTogether(Controller):
    """Each is told when the queue as it is now will be short; nobody counts who was told so before."""

    def _refusal(self, now: float, job: Job, line: Line | None, reason: Reason) -> Refuse:
        refuse = super()._refusal(now, job, line, reason)
        honest = max(1.0, refuse.predicted_wait_seconds - job.request.wait_limit_seconds / 2)
        return replace(refuse, retry_after_seconds=honest)


class PromisesMelt(Controller):
    """Room that was promised to the refused is thought to come as time passes, though others use it."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._promised_seconds = self._promised_at = 0.0

    def _refusal(self, now: float, job: Job, line: Line | None, reason: Reason) -> Refuse:
        refuse = super()._refusal(now, job, line, reason)
        if line is None:
            return refuse
        left = max(0.0, self._promised_seconds - (now - self._promised_at))
        service = line.pool.timeline.prefill_seconds(job, line.pool.uncached_tokens(job))
        self._promised_seconds, self._promised_at = left + service, now
        honest = max(1.0, refuse.predicted_wait_seconds - job.request.wait_limit_seconds / 2)
        return replace(refuse, retry_after_seconds=honest + left)


class GuessesByCount(Rebuilt):
    """A second for each that waits before: what one does not know about prefill."""

    class line_type(Line):  # noqa: N801
        def predicted_wait(self, job: Job, now: float) -> float:
            return 1.0 + self.position(job)


class ForeignLeavesAtOnce(Rebuilt):
    """What bypasses the proxy is counted as room, and expected to make some whenever it is needed."""

    class pool_type(Pool):  # noqa: N801
        class Gone(ForeignHistory):
            def falls_at(self, now: float, tokens: int, pool_tokens: int) -> float:
                return now

        def __init__(self, name: str, facts: PoolFacts, limits: Limits) -> None:
            super().__init__(name, facts, limits)
            self.foreign_history = self.Gone()


class ForeignStays(Rebuilt):
    """What bypasses the proxy is expected to stay for an hour, whenever it came."""

    class pool_type(Pool):  # noqa: N801
        class Lasting(ForeignHistory):
            def falls_at(self, now: float, tokens: int, pool_tokens: int) -> float:
                return now + 3600.0

        def __init__(self, name: str, facts: PoolFacts, limits: Limits) -> None:
            super().__init__(name, facts, limits)
            self.foreign_history = self.Lasting()


class AllWaitForForeign(Rebuilt):
    """Whoever waits is told to wait until what bypasses the proxy has gone."""

    class line_type(Line):  # noqa: N801
        def predicted_wait(self, job: Job, now: float) -> float:
            gone_at = self.pool.foreign_history.falls_at(now, 0, self.pool.facts.pool_tokens)
            return max(gone_at - now, super().predicted_wait(job, now))


class DrainWaits(Controller):
    """Shutting down, the queue is served first; nobody in it is told."""

    def _drain(self, now: float, event: Drain, actions: list[Action]) -> Iterable[Line]:
        self.draining = True
        return ()


class DrainedInChorus(RetryAfterConstant):
    """Those sent away by a shutdown all come back at the same moment."""


# --- slices -------------------------------------------------------------------------------------


class NoSlices(Controller):
    """Long prompts go whole."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, slice_seconds=0.0))


class SlowSlices(Rebuilt):
    """Decodes get a second after every slice, whether anybody waits for them or not."""

    class line_type(Line):  # noqa: N801
        def next_slice(self, now: float) -> int | None:
            slicing = self.pool.slicing
            return None if now < slicing.rested_at + 0.5 else super().next_slice(now)


class ShortsFirst(Rebuilt):
    """No slice goes while a short waits."""

    class line_type(Line):  # noqa: N801
        def next_slice(self, now: float) -> int | None:
            return None if len(self.shorts) else super().next_slice(now)


# --- between tenants ----------------------------------------------------------------------------


class OneTenant(Controller):
    """First come, first served, whoever it is."""

    def _arrive(self, now: float, event: Arrival, actions: list[Action]) -> Iterable[Line]:
        return super()._arrive(now, Arrival(replace(event.request, tenant="all")), actions)


class CountsRequests(Controller):
    """Fair by the number of requests, large or small."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.charges = _Counted()


class _Counted(Charges):
    def charge(self, tenant: str, token_seconds: float, weight: float) -> None:
        if token_seconds > 0:
            super().charge(tenant, 1.0, weight)


class IdleIsCredit(Controller):
    """What one did not use yesterday one may use today."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.charges = _Unlifted()


class _Unlifted(Charges):
    def lift(self, tenant: str, at_least: float) -> None:
        return


# --- what a step costs --------------------------------------------------------------------------


class SortsQueue(Rebuilt):
    """Looks at everybody who waits whenever anything happens."""

    class line_type(Line):  # noqa: N801
        def next_due(self, now: float) -> Due | None:
            sorted(self.jobs(), key=lambda job: job.request.prompt_tokens)
            return super().next_due(now)


class RemembersAll(Controller):
    """Keeps everybody who ever came, for the record."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.everybody: list[Job] = []

    def _enqueue(self, job: Job, line: Line, *, front: bool = False) -> None:
        self.everybody.append(job)
        super()._enqueue(job, line, front=front)
