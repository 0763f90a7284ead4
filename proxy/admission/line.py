"""The waiting line of one pool: its lanes, its gate, and who goes next."""

from collections.abc import Iterator
from itertools import islice

from proxy.admission.backfill import Gate, Rule
from proxy.admission.forecast import Forecast
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.pool import Pool
from proxy.admission.queue import Charges, FairQueue
from proxy.admission.reservation import Reservation
from proxy.admission.types import Lane

Due = tuple[Job, Rule]


TENANT_SHARE = 0.5
MIN_TELLING_SECONDS = 1.0  # shorter predictions are right or wrong by a tick
BIAS_WEIGHT = 0.1
BIAS_MOST = 2.0
SCAN_SHORTS = 32  # first fit looks at this many shorts per round
SCAN_LONGS = 8  # and at this many longs behind a blocked head


class Line:
    """Orders what waits for one pool. `due` yields who may go now, one by one."""

    def __init__(self, pool: Pool, limits: Limits, reservation: Reservation, charges: Charges) -> None:
        self.pool = pool
        self.shorts = FairQueue(charges)
        self.longs = FairQueue(charges)
        self.gate = Gate(pool)
        self.bias = 1.0  # of forecasts: actual waits over predicted ones, lately
        self._limits = limits
        self._reservation = reservation

    def adopt(self, limits: Limits) -> None:
        """Go by these limits from now on."""
        self._limits = limits
        self.pool.adopt(limits)

    # --- membership ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.shorts) + len(self.longs)

    @property
    def waiting_tokens(self) -> int:
        return self.shorts.tokens + self.longs.tokens

    def queue_of(self, job: Job) -> FairQueue:
        return self.longs if job.long else self.shorts

    def push(self, job: Job, *, front: bool = False) -> None:
        self.queue_of(job).push(job, front=front)

    def remove(self, job: Job) -> None:
        self.queue_of(job).remove(job)
        if self.gate.head is job:
            self.gate.block(None)

    def jobs(self) -> Iterator[Job]:
        yield from self.shorts.in_order()
        yield from self.longs.in_order()

    # --- classification ------------------------------------------------------------------------

    def lane_of(self, job: Job) -> Lane:
        """By what the job would cost here: its uncached prompt, then its whole need.

        A short prefill that needs more room than shorts have queues with the longs: first fit
        would pass it for ever.
        """
        need = self.pool.need_tokens(job, self.reserve_of(job))
        short_room = max(self._limits.short_prefill_tokens, self.pool.express_tokens)
        cheap = self.pool.uncached_tokens(job) <= self._limits.short_prefill_tokens
        if cheap and self.pool.private_tokens(job) <= short_room:
            return Lane.SHORT
        return Lane.GIANT if self.pool.is_giant(need) else Lane.LONG

    def reserve_of(self, job: Job) -> int:
        return self._reservation.reserve_tokens(job.request) * job.request.sequences

    # --- dispatch ------------------------------------------------------------------------------

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
        heads = self.longs.heads()
        return next((job for job in heads if not self._over_share(job)), heads[0] if heads else None)

    def _over_share(self, job: Job) -> bool:
        """A tenant may hold at most half of B while another waits."""
        tenant, pool = job.request.tenant, self.pool
        held = pool.tenant_tokens.get(tenant, 0)
        if not held or held + job.prompt_tokens <= TENANT_SHARE * pool.budget_tokens:
            return False
        return self.longs.others_wait(tenant) or self.shorts.others_wait(tenant)

    def _take_turns(self, job: Job, end: int, now: float) -> bool:
        """Must the next slice wait, so that shorts get in before it?"""
        pool = self.pool
        if not pool.slicing.shorts_recent(now):
            return False
        first = self.shorts.head()
        if first is not None:
            if pool.fits(first, self.reserve_of(first)):
                return not pool.timeline.open_for_shorts(now)
            if now < pool.slicing.rested_at:  # it waits for a running one, which slices would stall
                return True
        if not pool.timeline.busy:
            return False
        if pool.short_backlog_tokens:
            return True  # the engine's own queue is for one
        # whoever comes next finds no more than about one slice in front
        depth = job.slice_sent_tokens
        ahead = max(0.0, pool.timeline.free_at(now) - now) + pool.costs.prefill_seconds(end - depth, depth)
        return ahead > pool.slicing.compute_seconds

    def next_slice(self, now: float) -> int | None:
        """How far the prefill under way should go next: the end of a slice, or of the whole prompt.

        0 means that the request itself should follow now; None that there is nothing to send yet.
        """
        pool, job = self.pool, self.pool.sliced
        if job is None or not pool.up or now < pool.hold_until:
            return None
        end = None if job.unsliceable else pool.slicing.next_end(job, pool.facts, now)
        if end is not None:
            if not pool.slice_fits(end - job.slice_sent_tokens):
                return None
            if self._take_turns(job, end, now):
                return None
            if job.slice_ends and not job.sliced_tokens:
                return None  # until one was answered nothing says that the first has begun
            ahead = pool.slicing.overhead_seconds(end)
            return end if pool.timeline.open_for_long(ahead, now) else None
        if job.ids_tokens is None and not job.unsliceable:
            return None
        ahead = pool.timeline.tokenize_seconds(job)
        return 0 if not pool.timeline.busy or now >= pool.timeline.free_at(now) - ahead else None

    def _next_short(self, now: float, head: Job | None) -> Due | None:
        pool = self.pool
        if not len(self.shorts) or not pool.timeline.open_for_shorts(now):
            return None
        for job in islice(self.shorts.in_order(), SCAN_SHORTS):
            uncached = pool.uncached_tokens(job)
            if pool.short_backlog_tokens and pool.short_backlog_tokens + uncached > pool.facts.chunk_tokens:
                return None  # one chunk's worth at a time; the rest stays where it can be ordered
            reserve = self.reserve_of(job)
            if self._over_share(job):
                continue
            if not pool.fits(job, reserve):
                if self._dropped_hold(job, now):
                    return self._next_short(now, head)
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
        if pool.fits(head, self.reserve_of(head)):
            return head, Rule.FIT
        if self._dropped_hold(head, now):
            return self._next_long(now, head)
        for job in islice(self.longs.in_order(), SCAN_LONGS):
            if job is head:
                continue
            reserve = self.reserve_of(job)
            if not pool.timeline.busy and pool.fits(job, reserve):
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
        need = pool.need_tokens(job, self.reserve_of(job))
        if not pool.holds or pool.effective_tokens + need <= pool.budget_tokens:
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

    def obstacles(self, job: Job, now: float) -> list[str]:
        """What keeps a newcomer from being sent at once, in words an operator can act on."""
        pool, found = self.pool, []
        reserve = self.reserve_of(job)
        if now < pool.hold_until:
            found.append("the server said its own queue is full")
        found.extend(pool.misfits(job, reserve))
        if job.long:
            if len(self.longs):
                found.append(f"{len(self.longs)} long requests are queued before it")
            if pool.sliced is not None or not self._open_for_long(job, now):
                found.append("another long prompt is in prefill")
            if not self._may_hold_another_long():
                found.append(f"PROXY_MAX_LONG_CONTEXTS={self._limits.max_long_contexts} are resident")
            return found
        if not pool.timeline.open_for_shorts(now):
            found.append("a long prompt is in prefill")
        head = self.longs.head()
        if not found and head is not None:
            self.gate.block(head)
            if self._rule(job, reserve, head, now) is None:
                found.append("the gate is closed for a long request that has waited too long")
        return found

    # --- prediction ----------------------------------------------------------------------------

    def waited(self, job: Job, waited_seconds: float) -> None:
        """A job has been sent that a forecast was made for when it came."""
        predicted = job.predicted_wait_seconds
        if predicted < MIN_TELLING_SECONDS:
            return
        ratio = min(BIAS_MOST, waited_seconds / (predicted / self.bias))
        self.bias += BIAS_WEIGHT * (max(1 / BIAS_MOST, ratio) - self.bias)

    def predicted_wait(self, job: Job, now: float) -> float:
        """Seconds until `job` would be sent; it may be queued already or not."""
        return self.bias * self._forecast_wait(job, now)

    def _forecast_wait(self, job: Job, now: float) -> float:
        forecast = Forecast(self.pool, self._reservation, now)
        queue = self.queue_of(job)
        position = queue.position(job)
        if job.long:
            ahead = (other for other in islice(self.longs.in_order(), position) if other is not job)
            return forecast.long_wait(job, ahead, position)
        tokens_ahead = queue.tokens * position // max(1, len(queue))
        return forecast.short_wait(job, position, tokens_ahead)

    def position(self, job: Job) -> int:
        """How many of its lane are before it."""
        return self.queue_of(job).position(job)

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
            times.append(pool.slicing.rested_at if pool.slicing.rested_at > now else None)
        if len(self):
            times.append(pool.hold_until if pool.hold_until > now else None)
        if len(self.shorts):
            times.append(pool.timeline.wakeup(self._limits.send_ahead_seconds, now))
        head = self.longs.head()
        if head is not None:
            times.append(pool.timeline.wakeup(pool.timeline.tokenize_seconds(head), now))
            times.append(pool.timeline.wakeup(0.0, now))
            old_at = head.arrived_at + self._limits.max_bypass_seconds
            times.append(old_at if old_at > now else None)
            patience = self._limits.max_bypass_seconds
            times.extend(at for hold in pool.holds if (at := hold.falls_at(patience)) > now)
        times.extend(hold.until for hold in pool.holds)
        return min((at for at in times if at is not None), default=None)
