"""When a request is refused, and what its client is told. The arithmetic of it is in `refusal`."""

import heapq
from zlib import crc32

from proxy.admission import refusal
from proxy.admission.backfill import expected_end
from proxy.admission.holding import Holding
from proxy.admission.job import Job, State
from proxy.admission.limits import QUEUE_TOKENS_POOLS, Limits
from proxy.admission.line import Line
from proxy.admission.routing import Router
from proxy.admission.tenants import Objection
from proxy.admission.types import Action, Lane, Reason, Refuse

#: requests that are in each other's way: of one lane, to servers of the same models
_Crowd = tuple[frozenset[tuple[str, ...]], Lane]


class Refusing(Holding):
    """Finds a request its pool, and says no: at once, or when its time has come."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.router = Router(self.fleet, self.conversations, self.limits)
        self._refusing: dict[_Crowd, bool] = {}
        self._returns: dict[_Crowd, refusal.Returns] = {}

    # --- may it wait -----------------------------------------------------------------------------

    def route(self, job: Job, now: float) -> Line | None:
        """The line that has the job done first, of those that can ever take it. See `Router`."""
        return self.router.choose(job, now)

    def _refuse_hopeless(self, now: float, rid: str, actions: list[Action]) -> None:
        job = self.jobs.get(rid)
        if job is None or job.state is not State.QUEUED or job.pool not in self.lines:
            return
        line = self.lines[job.pool]
        job.predicted_wait_seconds = line.predicted_wait(job, now)
        hopeless = self.is_hopeless(job, line, job.predicted_wait_seconds)
        self._refusing[self._crowd(job)] = hopeless
        if hopeless:
            refuse = self._refusal(now, job, line, Reason.WOULD_MISS_DEADLINE)
            self._forget(job)
            actions.append(refuse)

    def is_hopeless(self, job: Job, line: Line, predicted_wait: float) -> bool:
        """Would it miss its deadline? Once one of its crowd was refused, less than the limit is allowed."""
        limit = job.request.wait_limit_seconds
        if not line.pool.costs.known:
            limit *= refusal.UNKNOWN_RATE_SLACK
        elif self._refusing.get(self._crowd(job), False):
            limit *= self.limits.accept_again
        return predicted_wait * refusal.PROMISE_MARGIN > limit

    def _crowd(self, job: Job) -> _Crowd:
        return self.router.models(job.request), job.lane

    def queue_full(self, job: Job) -> bool:
        """Is so much waiting already that `job` must not wait, too?"""
        requests, tokens = self.fleet.waiting_requests + len(self._homeless), self.fleet.waiting_tokens
        most_tokens = self.limits.max_queue_tokens or QUEUE_TOKENS_POOLS * self.fleet.pool_tokens
        return requests >= self.limits.max_queue_requests or tokens + job.request.prompt_tokens > max(
            most_tokens, job.request.prompt_tokens
        )

    def _objection(self, now: float, job: Job, line: Line) -> Objection | None:
        """Its tenant's limit that it would break. Notes what it is counted as."""
        reserve = line.reserve_of(job)
        job.claimed_tokens = line.pool.need_tokens(job, reserve)
        job.metered_tokens = job.prompt_tokens + reserve
        return self.tenants.objection(job.request, job.claimed_tokens, job.metered_tokens, now)

    def _expire(self, now: float, actions: list[Action]) -> None:
        self._end_holds(now)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, rid = heapq.heappop(self._deadlines)
            job = self.jobs.get(rid)
            if job is None or job.state is not State.QUEUED or job.deadline_at > now:
                continue
            line = self.lines.get(job.pool)
            reason = Reason.DEADLINE if line else Reason.NO_BACKEND
            refuse = self._refusal(now, job, line, reason)
            self._forget(job)
            actions.append(refuse)
        for job in [job for job in self._draining.values() if job.drain_until <= now]:
            self._release(now, job)

    # --- what it is told -------------------------------------------------------------------------

    def _turned_away(self, now: float, job: Job) -> Refuse:
        """No open pool takes it: for now, or ever."""
        reason = self.router.obstacle(job.request)
        roomiest = self.router.roomiest(job.request)
        if reason is Reason.NO_BACKEND:
            return self._refusal(now, job, None, reason)
        if roomiest is None:
            return Refuse(job.rid, reason, job.lane, 0.0, None, job.request.prompt_tokens, 0, 0)
        return Refuse(
            job.rid,
            reason,
            roomiest.lane_of(job),
            predicted_wait_seconds=0.0,
            retry_after_seconds=None,
            needed_tokens=job.request.prompt_tokens,
            free_tokens=roomiest.pool.free_tokens,
            queue_position=0,
            limit_tokens=refusal.limit_exceeded(roomiest.pool, job.request),
        )

    def _refusal(self, now: float, job: Job, line: Line | None, reason: Reason) -> Refuse:
        if line is None:
            spread = refusal.spread_seconds(crc32(job.rid.encode()))
            return Refuse(job.rid, reason, job.lane, 0.0, spread, job.request.prompt_tokens, 0, 0)
        wait = line.predicted_wait(job, now)
        earliest = refusal.earliest_return_seconds(wait, job.request.wait_limit_seconds)
        ahead = line.position(job)
        service = refusal.service_seconds(line.pool, job, line.reserve_of(job), wait, ahead)
        service /= self.router.servers(job)  # a crowd comes back to all of them
        returns = self._returns.setdefault(self._crowd(job), refusal.Returns())
        return Refuse(
            job.rid,
            reason,
            job.lane,
            predicted_wait_seconds=wait,
            retry_after_seconds=returns.seconds(now, earliest, service),
            needed_tokens=line.pool.need_tokens(job, line.reserve_of(job)),
            free_tokens=line.pool.free_tokens,
            queue_position=ahead,
        )

    def _tenant_refusal(self, now: float, job: Job, line: Line, objection: Objection) -> Refuse:
        """Says which limit it was, and when the tenant's own requests will have made room."""
        seconds = objection.retry_seconds
        if seconds is None:
            seconds = self._room_in(now, job) if not objection.hopeless else 0.0
        spread = crc32(job.rid.encode())
        return Refuse(
            job.rid,
            Reason.TENANT_LIMIT,
            job.lane,
            predicted_wait_seconds=seconds,
            retry_after_seconds=None if objection.hopeless else refusal.spread_after(seconds, spread),
            needed_tokens=job.claimed_tokens,
            free_tokens=line.pool.free_tokens,
            queue_position=0,
            tenant_limit=objection.limit,
        )

    def _room_in(self, now: float, job: Job) -> float:
        """When the tenant's running requests have freed what `job` needs of its limits."""
        tenant, limits = job.request.tenant, job.request.limits
        _, tokens = self.tenants.usage(tenant)
        excess = tokens + job.claimed_tokens - (limits.resident_tokens or tokens + job.claimed_tokens)
        pools = [line.pool for line in self.lines.values()]
        mine = [
            (expected_end(pool, other, now), other.claimed_tokens)
            for pool in pools
            for other in pool.jobs.values()
            if other.request.tenant == tenant
        ]
        end = now
        for end, claimed in sorted(mine):  # noqa: B007
            excess -= claimed
            if excess <= 0:
                break
        return end - now
