"""Who waits, who runs, and what each is charged: every request from its arrival to its end.

Nothing is decided here. Whatever ends a request, it leaves the books exactly once, and its tokens with it.
"""

import heapq
from collections.abc import Iterable

from proxy.admission.costs import nominal_seconds
from proxy.admission.fleet import Fleet
from proxy.admission.job import Job, State
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.queue import Charges
from proxy.admission.reservation import Reservation
from proxy.admission.residency import Conversations
from proxy.admission.sensor import Sensor
from proxy.admission.tenants import Tenants

TENANTS_KEPT = 4096
DEADLINES_SLACK = 1024  # of those that do not wait any more, or twice, before they are swept out


class Books:
    """All jobs, by where they are, and the accounts they are in."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.reservation = Reservation(self.limits.output_reserve_quantile, self.limits.output_reserve_cap)
        self.charges = Charges()
        self.conversations = Conversations()
        self.tenants = Tenants()
        self.jobs: dict[str, Job] = {}
        self.fleet = Fleet()
        self.lines = self.fleet.lines
        self.draining = False
        self._sensors: dict[str, Sensor] = {}
        self._homeless: dict[str, Job] = {}  # queued while no backend is up
        self._deadlines: list[tuple[float, str]] = []
        self._draining: dict[str, Job] = {}

    # --- waiting -------------------------------------------------------------------------------

    def _enqueue(self, job: Job, line: Line, *, front: bool = False) -> None:
        self.jobs[job.rid] = job
        job.pool = line.pool.name
        line.push(job, front=front)
        self.fleet.changed(line)
        self._note_deadline(job)

    def _note_deadline(self, job: Job) -> None:
        """It waits, for the first time or again: while it did not, its deadline may have been dropped."""
        heapq.heappush(self._deadlines, (job.deadline_at, job.rid))
        if len(self._deadlines) > 2 * len(self.jobs) + DEADLINES_SLACK:  # most have left before theirs
            waiting = (other for other in self.jobs.values() if other.state is State.QUEUED)
            self._deadlines = [(other.deadline_at, other.rid) for other in waiting]
            heapq.heapify(self._deadlines)

    def _waiting(self, rid: str) -> bool:
        job = self.jobs.get(rid)
        return job is not None and job.state is State.QUEUED

    def _unqueue(self, job: Job) -> None:
        if self._homeless.pop(job.rid, None) is None:
            self.lines[job.pool].remove(job)
            self.fleet.changed(self.lines[job.pool])

    def _forget(self, job: Job) -> None:
        self._unqueue(job)
        self._leave(job, unused_tokens=job.metered_tokens)

    # --- leaving -------------------------------------------------------------------------------

    def _leave(self, job: Job, *, unused_tokens: int) -> None:
        """It neither waits nor runs any more."""
        del self.jobs[job.rid]
        if job.conversation is not None:
            job.conversation.running -= 1
        self.tenants.give_back(job.request, job.claimed_tokens, unused_tokens)

    def _release(
        self, now: float, job: Job, *, spent_tokens: int | None = None, produced_tokens: int | None = None
    ) -> Iterable[Line]:
        line = self.lines[job.pool]
        held = line.pool.own_tokens(job)
        worth = self._worth_seconds(
            now, job, job.generated_tokens if produced_tokens is None else produced_tokens
        )
        spent = job.prompt_tokens + job.generated_tokens if spent_tokens is None else spent_tokens
        line.pool.release(job)
        self.fleet.changed(line)
        self._leave(job, unused_tokens=job.metered_tokens - spent)
        self._draining.pop(job.rid, None)
        if job.conversation is not None:
            job.conversation.ended_at = now
        self.charges.charge(job.request.tenant, held * worth - job.charged_token_seconds, job.request.weight)
        self._sensors[job.pool].released(now, held)
        if len(self.charges) > 2 * TENANTS_KEPT:
            self.charges.forget_idle({j.request.tenant for j in self.jobs.values()}, TENANTS_KEPT)
        return (line,)

    # --- accounts ------------------------------------------------------------------------------

    def _claim(self, now: float, job: Job) -> None:
        self.tenants.take(job.request, job.claimed_tokens, job.metered_tokens, now)

    def _take_back(self, job: Job) -> None:
        """It did nothing: what its tenant and its conversation were told of it was not so."""
        self.charges.charge(job.request.tenant, -job.charged_token_seconds, job.request.weight)
        job.charged_token_seconds = 0.0
        if job.conversation is not None:
            job.conversation.running -= 1
            job.conversation = None

    def _charge_ahead(self, pool: Pool, job: Job) -> None:
        job.charged_prefill_seconds = nominal_seconds(job.uncached_tokens, 0)
        seconds = job.charged_prefill_seconds + nominal_seconds(0, job.remaining_tokens())
        job.charged_token_seconds = pool.own_tokens(job) * seconds
        self.charges.charge(job.request.tenant, job.charged_token_seconds, job.request.weight)

    @staticmethod
    def _worth_seconds(now: float, job: Job, produced_tokens: int) -> float:
        """What its residency is charged in the end: by what it did, at a pace that is the same for all.

        At the pace as it is believed, a forecast that changes would pay back at once to who has much
        running, and who was lifted to those charges meanwhile would wait that long.
        """
        if not job.prefill_done:
            return min(job.charged_prefill_seconds, now - job.dispatched_at)
        return job.charged_prefill_seconds + nominal_seconds(0, produced_tokens / job.request.sequences)
