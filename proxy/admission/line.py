"""The waiting line of one pool: who goes next, and past whom."""

from itertools import islice
from math import inf

from proxy.admission.backfill import Gate, Rule
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.pool import Pool
from proxy.admission.queue import Charges
from proxy.admission.reservation import Reservation
from proxy.admission.turns import Turns
from proxy.admission.types import Lane

Due = tuple[Job, Rule]

TENANT_SHARE = 0.5
SCAN_SHORTS = 32  # first fit looks at this many shorts per round
SCAN_LONGS = 8  # and at this many longs behind a blocked head
SHORT_PATIENCE_SECONDS = 1.0  # after which a hold falls for a short that only the engine would not take


class Line(Turns):
    """Orders what waits for one pool. `next_due` yields who may go now, one by one."""

    def __init__(self, pool: Pool, limits: Limits, reservation: Reservation, charges: Charges) -> None:
        super().__init__(pool, limits, reservation, charges)
        self.gate = Gate(pool)

    def remove(self, job: Job) -> None:
        """It waits no longer; a blocked head leaves its gate with it."""
        super().remove(job)
        if self.gate.head is job:
            self.gate.block(None)

    # --- who goes ------------------------------------------------------------------------------

    def next_due(self, now: float) -> Due | None:
        """The next job to start now, or None. The caller admits it and asks again."""
        pool = self.pool
        if not pool.up or now < pool.hold_until or not len(self):
            return None
        head = self._long_head()
        self.gate.block(head)
        return self._next_short(now, head) or self._next_long(now, head)

    def _long_head(self) -> Job | None:
        """The long that is next: the least charged tenant's, unless that holds its half already."""
        if self.longs.tenant_count <= 1 and not len(self.shorts):
            return self.longs.head()
        first = None
        for job in self.longs.heads():
            if not self._over_share(job):
                return job
            first = first or job
        return first

    def _over_share(self, job: Job) -> bool:
        """A tenant may hold at most half of B while another waits."""
        tenant, pool = job.request.tenant, self.pool
        held = pool.tenant_tokens.get(tenant, 0)
        if not held or held + job.prompt_tokens <= TENANT_SHARE * pool.budget_tokens:
            return False
        return self.longs.others_wait(tenant) or self.shorts.others_wait(tenant)

    def _next_short(self, now: float, head: Job | None) -> Due | None:
        pool = self.pool
        if not len(self.shorts) or not pool.timeline.open_for_shorts(now):
            return None
        room = inf if pool.holds else pool.short_room_tokens  # a hold may fall for it
        if min(self.shorts.least_tokens, pool.max_prompt_tokens) > room:
            return None
        backlog, chunk = pool.short_backlog_tokens, pool.facts.chunk_tokens
        for job in islice(self.shorts.in_order(), SCAN_SHORTS):
            if backlog and backlog + pool.uncached_tokens(job) > chunk:
                return None  # one chunk's worth at a time; the rest stays where it can be ordered
            if (job.prompt_tokens > room and pool.private_tokens(job) > room) or self._over_share(job):
                continue
            reserve = self.reserve_of(job)
            while not (fits := pool.fits(job, reserve)) and self._dropped_hold(job, now):
                pass
            if not fits:
                continue
            rule = self._rule(job, reserve, head, now)
            if rule is not None:
                return job, rule
        return None

    def _next_long(self, now: float, head: Job | None) -> Due | None:
        if head is None or not self._may_hold_another_long():
            return None
        pool = self.pool
        cheap = pool.uncached_tokens(head) <= self._limits.short_prefill_tokens
        if not cheap and (pool.sliced is not None or not self._open_for_long(head, now)):
            return None
        while not (fits := pool.fits(head, self.reserve_of(head))) and self._dropped_hold(head, now):
            pass
        if fits:
            return head, Rule.FIT
        if pool.timeline.busy:
            return None
        room = pool.long_room_tokens
        for job in islice(self.longs.in_order(), SCAN_LONGS):
            if job is head or (
                job.prompt_tokens > room and job.lane is Lane.LONG and pool.private_tokens(job) > room
            ):
                continue
            reserve = self.reserve_of(job)
            if pool.fits(job, reserve):
                rule = self._rule(job, reserve, head, now)
                if rule is not None:
                    return job, rule
        return None

    def _open_for_long(self, job: Job, now: float) -> bool:
        """May it start beside what is in prefill now?

        A whole prompt is sent ahead, to be tokenized meanwhile, only while no shorts come: they
        could end up behind it. The first slice of a prompt takes turns with them anyway.
        """
        pool = self.pool
        uncached = pool.uncached_tokens(job)
        if pool.slicing.applies(job, uncached, pool.facts, now):
            ahead = pool.slicing.overhead_seconds(uncached)
        elif pool.slicing.shorts_recent(now):
            ahead = 0.0
        else:
            ahead = pool.timeline.tokenize_seconds(job)
        return pool.timeline.open_for_long(ahead, now, most=self._limits.max_long_prefills)

    def _dropped_hold(self, job: Job, now: float) -> bool:
        """Let the hold fall that has stood longest, if one is due and gone would help `job`."""
        pool = self.pool
        if not pool.holds:
            return False
        lacks = pool.lacks(job, self.reserve_of(job))
        waits = not job.long and now - job.arrived_at >= SHORT_PATIENCE_SECONDS
        if not ("C" in lacks or ("E" in lacks and waits)):
            return False
        patience = self._limits.max_bypass_seconds if job.long else 0.0
        due = [hold for hold in pool.holds if hold.falls_at(patience) <= now]
        if not due:
            return False
        pool.drop_hold(min(due, key=lambda hold: hold.since))
        return True

    def _may_hold_another_long(self) -> bool:
        most = self._limits.max_long_contexts
        return most is None or sum(1 for job in self.pool.jobs.values() if job.long) < most

    def _rule(self, job: Job, reserve: int, head: Job | None, now: float) -> Rule | None:
        if head is None:
            return Rule.FIT
        return self.gate.rule_for(job, reserve, self.reserve_of(head), now)

    # --- what an operator sees, and when to look again -------------------------------------------

    def obstacles(self, job: Job, now: float) -> list[str]:
        """What keeps a newcomer from being sent at once, in words an operator can act on."""
        pool, found = self.pool, []
        reserve = self.reserve_of(job)
        if now < pool.hold_until:
            found.append("the server said its own queue is full")
        found.extend(pool.misfits(job, reserve))
        if job.long:
            if len(self.longs) and not self._passes_longs(job, reserve, now):
                found.append(f"{len(self.longs)} long requests are queued before it")
            if pool.sliced is not None or not self._open_for_long(job, now):
                found.append("another long prompt is in prefill")
            if not self._may_hold_another_long():
                found.append(f"PROXY_MAX_LONG_CONTEXTS={self._limits.max_long_contexts} are resident")
            return found
        if not pool.timeline.open_for_shorts(now):
            found.append("a long prompt is in prefill")
        head = self._long_head()
        if not found and head is not None:
            self.gate.block(head)
            if self._rule(job, reserve, head, now) is None:
                found.append("the gate is closed for a long request that has waited too long")
        return found

    def _passes_longs(self, job: Job, reserve: int, now: float) -> bool:
        """Would a newcomer go past the long requests that wait?"""
        pool, head = self.pool, self._long_head()
        if head is None or len(self.longs) >= SCAN_LONGS or pool.timeline.busy or not pool.fits(job, reserve):
            return False
        if pool.uncached_tokens(head) > self._limits.short_prefill_tokens and pool.sliced is not None:
            return False
        self.gate.block(head)
        return self._rule(job, reserve, head, now) is not None

    def wakeup(self, now: float) -> float | None:
        """When to look again although nothing happened."""
        pool = self.pool
        if pool.sliced is None and not pool.holds and not len(self):
            return None  # as for most requests of most days
        times = list[float | None]()
        if pool.sliced is not None:
            job = pool.sliced
            times.append(pool.timeline.wakeup(pool.slicing.overhead_seconds(job.slice_sent_tokens), now))
            times.append(pool.timeline.wakeup(pool.timeline.tokenize_seconds(job), now))
            rests = (pool.slicing.half_rested_at, pool.slicing.rested_at)
            times.extend(at for at in rests if at > now)
        if len(self):
            times.append(pool.hold_until if pool.hold_until > now else None)
        if self.shorts.requests and pool.timeline.busy:
            times.append(pool.timeline.wakeup(self._limits.send_ahead_seconds, now))
        head = self.longs.head()
        if head is not None:
            if pool.timeline.busy:
                times.append(pool.timeline.wakeup(pool.timeline.tokenize_seconds(head), now))
                times.append(pool.timeline.wakeup(0.0, now))
            old_at = head.arrived_at + self._limits.max_bypass_seconds
            times.append(old_at if old_at > now else None)
            patience = self._limits.max_bypass_seconds
            times.extend(at for hold in pool.holds if (at := hold.falls_at(patience)) > now)
        times.extend(hold.until for hold in pool.holds)
        known = [at for at in times if at is not None]
        return min(known) if known else None
