"""How long would this request wait? The dispatch, run forward over what is running and queued.

Exact for the first QUEUE_EXACT longs; behind those the same work spread evenly over the rest. What
bypasses the proxy makes room by no ending of ours: where only that would help, how long it has been
there says how long it may stay.
"""

import heapq
from collections.abc import Sequence

from proxy.admission.backfill import expected_end
from proxy.admission.job import Job
from proxy.admission.pool import Pool
from proxy.admission.reservation import Reservation
from proxy.admission.residency import quantum_seconds

QUEUE_EXACT = 24  # longs simulated one by one: behind so many nobody keeps to a promise


#: when room comes back, how many tokens and how many slots
Finish = tuple[float, int, int]


class Forecast:
    """Predictions for one pool."""

    def __init__(self, pool: Pool, reservation: Reservation) -> None:
        self._pool = pool
        self._reservation = reservation
        self._known: dict[bool, list[Finish]] = {}  # what `_finishes` has found,
        self._known_at = (-1, 0.0)  # for this version of the pool, at this time

    def short_wait(self, job: Job, count_ahead: int, tokens_ahead: int, now: float) -> float:
        """Seconds until a short job is sent that has `count_ahead` shorts before it."""
        pool, costs, request = self._pool, self._pool.costs, job.request
        at = max(now, pool.hold_until)
        if not pool.timeline.open_for_shorts(now):
            at = max(at, pool.timeline.free_at(now) - pool.limits.send_ahead_seconds)
        chunk = pool.facts.chunk_tokens
        if tokens_ahead + pool.short_backlog_tokens >= chunk:
            at += (tokens_ahead + pool.short_backlog_tokens) // chunk * costs.prefill_seconds(chunk)
        reserve = self._reservation.reserve_tokens(request) * request.sequences
        needed = pool.need_tokens(job, reserve) + tokens_ahead
        free = pool.short_ceiling_tokens - pool.effective_tokens
        slots = pool.facts.max_running_requests
        free_slots = slots - pool.running_slots if slots is not None else len(pool.jobs) + 1_000_000
        wanted_slots = request.sequences + count_ahead
        if needed <= free and wanted_slots <= free_slots:
            return at - now
        for end, tokens, slots_back in self._finishes(now):
            free += tokens
            free_slots += slots_back
            if end > at:
                at = end
            if needed <= free and wanted_slots <= free_slots:
                return at - now
        foreign = pool.foreign_tokens
        if needed - tokens_ahead > free and foreign:
            at = max(at, self._foreign_falls_at(now, free + foreign - needed + tokens_ahead))
            free, foreign = free + foreign, 0
            if needed <= free and wanted_slots <= free_slots:
                return at - now
        # more is waiting than the pool holds at once: as many turns as it takes
        turns = max(
            needed / max(1, pool.budget_tokens - foreign), wanted_slots / max(1, slots or wanted_slots)
        )
        turn = reserve / request.sequences * costs.seconds_per_decode_token
        return at - now + turns * turn

    def long_wait(self, job: Job, ahead: Sequence[Job], count_ahead: int, now: float) -> float:
        """Seconds until a long job behind `ahead` longs is sent."""
        pool = self._pool
        room = pool.budget_tokens - pool.effective_tokens - pool.unused_express_tokens
        prefill_free = max(now, pool.prefill_free_at(now), pool.hold_until)
        finishes = self._finishes(now, stay=True).copy()  # in order, so that it is a heap
        started = now
        foreign = pool.foreign_tokens
        exact = ahead[:QUEUE_EXACT]
        unused_express = pool.unused_express_tokens
        reserve_tokens, tokenize_seconds = self._reservation.reserve_tokens, pool.timeline.tokenize_seconds
        prefill_seconds, decode_seconds = pool.costs.prefill_seconds, pool.costs.seconds_per_long_decode_token
        for other in [*exact, job]:
            reserve = reserve_tokens(other.request)
            need = pool.need_tokens(other, reserve * other.request.sequences)
            target = need - (unused_express if pool.is_giant(need) else 0)
            tokenizing = tokenize_seconds(other)
            if prefill_free - tokenizing > started:
                started = prefill_free - tokenizing
            while room < target and finishes:
                end, tokens, _ = heapq.heappop(finishes)
                room += tokens
                if end > started:
                    started = end
            if room < target and foreign:
                started = max(started, self._foreign_falls_at(now, room + foreign - target))
                room, foreign = room + foreign, 0
            room -= need
            uncached = pool.uncached_tokens(other)
            prefill = prefill_seconds(uncached, other.prompt_tokens - uncached)
            arrives = started + tokenizing
            prefill_free = max(prefill_free, arrives) + prefill
            decode = reserve * decode_seconds
            ends = prefill_free + decode
            if other.goes_on:
                ends = max(ends, started + self._stay_seconds(other, decode))
            heapq.heappush(finishes, (ends, need, 0))
        wait = started - now
        if count_ahead > len(exact) and exact:
            wait *= (count_ahead + 1) / (len(exact) + 1)
        return max(0.0, wait)

    def _foreign_falls_at(self, now: float, tokens: int) -> float:
        pool = self._pool
        return pool.foreign_history.falls_at(now, tokens, pool.facts.pool_tokens)

    def _stay_seconds(self, job: Job, turn_seconds: float) -> float:
        """How long a conversation keeps its place while others wait: its quantum, and half a turn."""
        prefill = self._pool.costs.prefill_seconds(job.prompt_tokens)
        return quantum_seconds(prefill) + turn_seconds / 2

    def _finishes(self, now: float, *, stay: bool = False) -> list[Finish]:
        """When room comes back, in order, of what runs and of what is held.

        `stay`: to those that wait for the places of conversations, which come back until theirs is over.
        """
        known_at = self._pool.version, now
        if known_at != self._known_at:
            self._known.clear()
            self._known_at = known_at
        found = self._known.get(stay)
        if found is None:
            found = self._known[stay] = sorted(self._ends(now, stay=stay))
        return found

    def _ends(self, now: float, *, stay: bool) -> list[Finish]:
        pool = self._pool
        ends: list[Finish] = []
        prefilled_at = max(now, pool.prefill_free_at(now))
        for job in pool.jobs.values():
            end = expected_end(pool, job, now, prefilled_at)
            talk = job.conversation
            if stay and job.goes_on and talk is not None:
                since = talk.resident_since if talk.tokens else job.dispatched_at
                end = max(end, since + self._stay_seconds(job, end - now))
            ends.append((end, pool.own_tokens(job), job.request.sequences))
        patience = pool.limits.max_bypass_seconds
        for hold in pool.holds:
            end = max(now, hold.falls_at(patience))
            if stay:
                quantum = quantum_seconds(pool.costs.prefill_seconds(hold.tokens))
                end = max(end, hold.conversation.resident_since + quantum)
            ends.append((end, hold.tokens, 0))
        return ends
