"""How long would this request wait? The dispatch, run forward over what is running and queued.

Exact for the first QUEUE_EXACT longs; behind those the same work spread evenly over the rest. What
bypasses the proxy makes room by no ending of ours: where only that would help, how long it has been
there says how long it may stay.
"""

import heapq
from collections.abc import Iterable
from itertools import islice

from proxy.admission.backfill import expected_end
from proxy.admission.job import Job
from proxy.admission.pool import Pool
from proxy.admission.reservation import Reservation
from proxy.admission.residency import quantum_seconds

QUEUE_EXACT = 48  # longs simulated one by one; more would cost the arrival a millisecond
MIN_DECODE_SHARE = 0.5  # shorts may take at most half of the prefill time from a long


class Forecast:
    """Predictions for one pool at one moment."""

    def __init__(self, pool: Pool, reservation: Reservation, now: float) -> None:
        self._pool = pool
        self._reservation = reservation
        self._now = now

    def short_wait(self, job: Job, count_ahead: int, tokens_ahead: int) -> float:
        """Seconds until a short job is sent that has `count_ahead` shorts before it."""
        pool, now = self._pool, self._now
        at = now
        if not pool.timeline.open_for_shorts(now):
            at = max(at, pool.timeline.free_at(now) - pool.limits.send_ahead_seconds)
        at = max(at, pool.hold_until)
        chunks_ahead = (tokens_ahead + pool.short_backlog_tokens) // pool.facts.chunk_tokens
        at += chunks_ahead * pool.costs.prefill_seconds(pool.facts.chunk_tokens)
        reserve = self._reservation.reserve_tokens(job.request) * job.request.sequences
        needed = pool.need_tokens(job, reserve) + tokens_ahead
        free = pool.short_ceiling_tokens - pool.effective_tokens
        slots = pool.facts.max_running_requests
        free_slots = slots - pool.running_slots if slots is not None else len(pool.jobs) + 1_000_000
        wanted_slots = job.request.sequences + count_ahead
        if needed <= free and wanted_slots <= free_slots:
            return at - now
        for end, tokens, slots_back in self._finishes():
            free += tokens
            free_slots += slots_back
            at = max(at, end)
            if needed <= free and wanted_slots <= free_slots:
                return at - now
        foreign = pool.foreign_tokens
        if needed - tokens_ahead > free and foreign:
            at = max(at, self._foreign_falls_at(free + foreign - needed + tokens_ahead))
            free, foreign = free + foreign, 0
            if needed <= free and wanted_slots <= free_slots:
                return at - now
        # more is waiting than the pool holds at once: as many turns as it takes
        turns = max(
            needed / max(1, pool.budget_tokens - foreign), wanted_slots / max(1, slots or wanted_slots)
        )
        turn = reserve / job.request.sequences * pool.costs.seconds_per_decode_token
        return at - now + turns * turn

    def long_wait(self, job: Job, ahead: Iterable[Job], count_ahead: int) -> float:
        """Seconds until a long job behind `ahead` longs is sent."""
        pool, now = self._pool, self._now
        room = pool.budget_tokens - pool.effective_tokens - pool.unused_express_tokens
        prefill_free = max(now, pool.prefill_free_at(now), pool.hold_until)
        finishes = [(end, order, tokens) for order, (end, tokens, _) in enumerate(self._finishes(stay=True))]
        heapq.heapify(finishes)
        order = len(finishes)
        started = now
        foreign = pool.foreign_tokens
        exact = list(islice(ahead, QUEUE_EXACT))
        for other in [*exact, job]:
            reserve = self._reservation.reserve_tokens(other.request) * other.request.sequences
            need = pool.need_tokens(other, reserve)
            giant = pool.is_giant(need)
            target = need - (pool.unused_express_tokens if giant else 0)
            started = max(started, prefill_free - pool.timeline.tokenize_seconds(other))
            while room < target and finishes:
                end, _, tokens = heapq.heappop(finishes)
                started = max(started, end)
                room += tokens
            if room < target and foreign:
                started = max(started, self._foreign_falls_at(room + foreign - target))
                room, foreign = room + foreign, 0
            room -= need
            arrives = started + pool.timeline.tokenize_seconds(other)
            prefill = pool.timeline.prefill_seconds(other, pool.uncached_tokens(other))
            prefill_free = max(arrives, prefill_free) + prefill
            decode = pool.costs.decode_seconds(reserve / other.request.sequences, long=True)
            ends = prefill_free + decode
            if other.goes_on:
                ends = max(ends, started + self._stay_seconds(other, decode))
            heapq.heappush(finishes, (ends, order, need))
            order += 1
        wait = started - now
        if count_ahead > len(exact) and exact:
            wait *= (count_ahead + 1) / (len(exact) + 1)
        return max(0.0, wait)

    def _foreign_falls_at(self, tokens: int) -> float:
        pool = self._pool
        return pool.foreign_history.falls_at(self._now, tokens, pool.facts.pool_tokens)

    def _stay_seconds(self, job: Job, turn_seconds: float) -> float:
        """How long a conversation keeps its place while others wait: its quantum, and half a turn."""
        prefill = self._pool.costs.prefill_seconds(job.prompt_tokens)
        return quantum_seconds(prefill) + turn_seconds / 2

    def _finishes(self, *, stay: bool = False) -> list[tuple[float, int, int]]:
        """When room comes back, in order: (time, tokens, slots) of what runs and of what is held.

        `stay`: to those that wait for the places of conversations, which come back until theirs is over.
        """
        now, pool = self._now, self._pool
        ends: list[tuple[float, int, int]] = []
        for job in pool.jobs.values():
            end = expected_end(pool, job, now)
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
        ends.sort()
        return ends
