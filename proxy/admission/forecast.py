"""How long would this request wait? The dispatch, run forward over what is running and queued.

Exact for the first QUEUE_EXACT longs; behind those the same work spread evenly over the rest.
"""

import heapq
from collections.abc import Iterable
from itertools import islice

from proxy.admission.backfill import expected_end
from proxy.admission.job import Job
from proxy.admission.pool import Pool
from proxy.admission.reservation import Reservation

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
        # more is waiting than the pool holds at once: as many turns as it takes
        turns = max(needed / max(1, pool.budget_tokens), wanted_slots / max(1, slots or wanted_slots))
        turn = reserve / job.request.sequences * pool.costs.seconds_per_decode_token
        return at - now + turns * turn

    def long_wait(self, job: Job, ahead: Iterable[Job], count_ahead: int) -> float:
        """Seconds until a long job behind `ahead` longs is sent."""
        pool, now = self._pool, self._now
        room = pool.budget_tokens - pool.effective_tokens - pool.unused_express_tokens
        prefill_free = max(now, pool.prefill_free_at(now), pool.hold_until)
        finishes = [(end, order, tokens) for order, (end, tokens, _) in enumerate(self._finishes())]
        heapq.heapify(finishes)
        order = len(finishes)
        started = now
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
            room -= need
            arrives = started + pool.timeline.tokenize_seconds(other)
            prefill = pool.timeline.prefill_seconds(other, pool.uncached_tokens(other))
            prefill_free = max(arrives, prefill_free) + prefill
            decode = pool.costs.decode_seconds(reserve / other.request.sequences, long=True)
            heapq.heappush(finishes, (prefill_free + decode, order, need))
            order += 1
        wait = started - now
        if count_ahead > len(exact) and exact:
            wait *= (count_ahead + 1) / (len(exact) + 1)
        return max(0.0, wait)

    def _finishes(self) -> list[tuple[float, int, int]]:
        """When room comes back, in order: (time, tokens, slots) of what runs and of what is held."""
        now, pool = self._now, self._pool
        ends = [
            (expected_end(pool, job, now), pool.own_tokens(job), job.request.sequences)
            for job in pool.jobs.values()
        ]
        patience = pool.limits.max_bypass_seconds
        ends += [(max(now, hold.falls_at(patience)), hold.tokens, 0) for hold in pool.holds]
        ends.sort()
        return ends
