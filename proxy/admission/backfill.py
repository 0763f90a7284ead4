"""Who may pass a blocked long request, and when nobody may any more.

EASY backfill from batch clusters (Lifka 1995) with a hard stop: the head of the long lane gets a
reservation at its shadow time t*, when predicted finishes have freed what it needs. Others pass
only if they delay it by nothing, stay inside the express share, or use up a bounded budget while
the head is younger than A. So wait(head) <= A + D, whatever the length predictions are worth.
"""

from dataclasses import dataclass
from enum import StrEnum

from proxy.admission.job import Job, State
from proxy.admission.pool import Pool


class Rule(StrEnum):
    """Why a request was let go; exported as `backfills_total{rule}` for all but FIT."""

    FIT = "fit"  # nobody was ahead of it
    ENDS_BEFORE = "ends_before"  # a: it is gone before the head could start
    BESIDE = "beside"  # a: it leaves the head its room at t*
    EXPRESS = "express"  # b: a short inside the share kept for shorts
    BYPASS = "bypass"  # c: the head is young and the budget not used up
    GIANT_ROOM = "giant_room"  # beside a waiting giant, in what it will leave over


@dataclass(frozen=True, slots=True)
class Shadow:
    """When the head can start, and what will be left beside it then."""

    at: float
    extra_tokens: int


def expected_end(pool: Pool, job: Job, now: float, prefilled_at: float | None = None) -> float:
    """When a job that holds a place is expected to leave it; `prefilled_at`: all long prefill is done."""
    if job.state is State.DRAINING:
        return min(job.drain_until, now + 1.0)
    decode = pool.costs.decode_seconds(job.remaining_tokens(), long=job.long)
    if job.state is State.DECODE:
        return now + decode
    return (max(now, pool.prefill_free_at(now)) if prefilled_at is None else prefilled_at) + decode


def expected_seconds(pool: Pool, job: Job, reserve_tokens: int) -> float:
    """How long a job that starts now would hold its place."""
    uncached = pool.uncached_tokens(job)
    decode = pool.costs.decode_seconds(reserve_tokens / job.request.sequences, long=job.long)
    return pool.timeline.prefill_seconds(job, uncached) + decode


def shadow_of(pool: Pool, head: Job, reserve_tokens: int, now: float) -> Shadow:
    """t* of the head: the earliest time at which predicted finishes leave it room and slots."""
    need = pool.need_tokens(head, reserve_tokens)
    free = pool.budget_tokens - pool.effective_tokens
    slots = pool.facts.max_running_requests
    free_slots = slots - pool.running_slots if slots is not None else head.request.sequences
    at = max(now, pool.prefill_free_at(now))
    if free < need or free_slots < head.request.sequences:
        ends = [(expected_end(pool, job, now, at), job) for job in pool.jobs.values()]
        for end, job in sorted(ends, key=lambda x: x[0]):
            free += pool.own_tokens(job)
            free_slots += job.request.sequences
            at = max(at, end)
            if free >= need and free_slots >= head.request.sequences:
                break
    return Shadow(at, max(0, free - need))


class Gate:
    """The bypass account of one pool's blocked head."""

    __slots__ = ("_budget_denied", "_head", "_shadow", "_shadow_key", "bypassed_tokens", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.bypassed_tokens = 0
        self._head: Job | None = None
        self._budget_denied = False
        self._shadow: Shadow | None = None
        self._shadow_key: tuple[str, int, int] = ("", -1, -1)

    @property
    def head(self) -> Job | None:
        return self._head

    def block(self, head: Job | None) -> None:
        """`head` is what waits first in the long lane now; None when nothing does."""
        if head is self._head:
            return
        self._head = head
        self.bypassed_tokens = 0
        self._budget_denied = False

    def closed(self, now: float) -> bool:
        """Only the harmless pass now: the head is old, or its bypass budget is used up."""
        return self._head is not None and (self._old(now) or self._budget_denied)

    def rule_for(self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float) -> Rule | None:
        """The rule that lets `job`, which fits, go before the head; None when it has to wait."""
        head, pool = self._head, self.pool
        if head is None or head is job:
            return Rule.FIT
        need = pool.need_tokens(job, reserve_tokens)
        shadow = self._shadow_at(head, head_reserve_tokens, now)
        if now + expected_seconds(pool, job, reserve_tokens) <= shadow.at:
            return Rule.ENDS_BEFORE
        if need <= shadow.extra_tokens:
            return Rule.BESIDE
        pressing = self._presses(head, head_reserve_tokens, now)
        if not job.long and not pressing and pool.short_tokens + need <= pool.express_tokens:
            return Rule.EXPRESS
        if not job.long and pressing:
            room = pool.short_room_beside(
                pool.need_tokens(head, head_reserve_tokens), exact=head.ids_tokens is not None
            )
            return Rule.GIANT_ROOM if pool.short_tokens + need <= room else None
        if self._old(now):
            return None
        if self.bypassed_tokens + need > pool.limits.bypass_budget * pool.budget_tokens:
            self._budget_denied = True
            return None
        return Rule.BYPASS

    def passed(self, rule: Rule, need_tokens: int) -> None:
        if rule is Rule.BYPASS:
            self.bypassed_tokens += need_tokens

    def _old(self, now: float) -> bool:
        head = self._head
        return head is not None and now - head.arrived_at > self.pool.limits.max_bypass_seconds

    def _presses(self, head: Job, head_reserve_tokens: int, now: float) -> bool:
        """A giant past A, or one that only shorts keep out: waiting longer would idle the pool."""
        if not self.pool.is_giant(self.pool.need_tokens(head, head_reserve_tokens)):
            return False
        return self._old(now) or self.pool.only_shorts

    def _shadow_at(self, head: Job, head_reserve_tokens: int, now: float) -> Shadow:
        # predictions do not get better by being made twice within a tenth of a second
        key = (head.rid, self.pool.version, int(now * 10))
        if self._shadow is None or key != self._shadow_key:
            self._shadow = shadow_of(self.pool, head, head_reserve_tokens, now)
            self._shadow_key = key
        return self._shadow
