"""What is held for the next turn of a conversation, for whom, and until when. See `residency`."""

import heapq
from itertools import count

from proxy.admission.books import Books
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.residency import MAX_HELD_SHARE, MIN_HOLD_TOKENS, Hold, quantum_seconds


class Holding(Books):
    """Grants holds, hands them over to the next turn, and lets them end."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self._hold_ends: list[tuple[float, int, str, Hold]] = []  # of some that have fallen, too
        self._hold_numbers = count()

    def _hold(self, now: float, job: Job) -> None:
        """Keep the context for the next turn, if one is to be expected and nobody is wronged."""
        talk, most = job.conversation, self.limits.session_hold_seconds
        if talk is None or most <= 0 or not job.prefill_done:
            return
        line = self.lines[job.pool]
        pool, segments = line.pool, job.segments
        tokens = sum(segment.tokens for segment in segments)
        self.conversations.continues(talk, job.request)
        if talk.pool != pool.name or talk.tokens == 0:
            talk.resident_since = job.dispatched_at
        talk.pool, talk.tokens = pool.name, tokens
        prefill = pool.costs.prefill_seconds(tokens)
        served = len(line.longs) > 0 and now - talk.resident_since > quantum_seconds(prefill)
        seconds = self.conversations.hold_seconds(talk, prefill)
        room = pool.held_tokens + tokens <= MAX_HELD_SHARE * pool.budget_tokens
        room = room and self._may_hold(job, tokens)
        if not seconds or served or not room or tokens < MIN_HOLD_TOKENS or talk.running > 1:
            talk.tokens = 0
            return
        hold = Hold(talk, segments, tokens, now, now + min(most, seconds), job.request.tenant)
        pool.hold(hold)
        heapq.heappush(self._hold_ends, (hold.until, next(self._hold_numbers), pool.name, hold))

    def _may_hold(self, job: Job, tokens: int) -> bool:
        """What is held for a tenant counts among its resident tokens."""
        request, most = job.request, job.request.limits.resident_tokens
        if most is None:
            return True
        holds = (hold for line in self.lines.values() for hold in line.pool.holds)
        held = sum(hold.tokens for hold in holds if hold.tenant == request.tenant)
        _, claimed = self.tenants.usage(request.tenant)
        return claimed - job.claimed_tokens + held + tokens <= most

    def _unhold(self, job: Job) -> None:
        """Its next turn has taken its place: the hold has become its charge."""
        talk = job.conversation
        line = self.lines.get(talk.pool) if talk is not None else None
        if line is None:
            return
        for hold in [h for h in line.pool.holds if h.conversation is talk]:
            line.pool.drop_hold(hold)
            self.fleet.changed(line)
            if line.pool.name == job.pool:
                line.pool.take_over(job)

    def _end_holds(self, now: float) -> None:
        """Those whose next turn stayed away."""
        while self._hold_ends and self._hold_ends[0][0] <= now:
            _, _, name, hold = heapq.heappop(self._hold_ends)
            held = self.lines.get(name)
            if held is not None and any(other is hold for other in held.pool.holds):
                self.conversations.stayed_away(hold.conversation)
                held.pool.drop_hold(hold)
                self.fleet.changed(held)
