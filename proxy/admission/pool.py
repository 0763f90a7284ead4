"""One KV pool, and what happens to the jobs that hold a place in it, from dispatch to release."""

from proxy.admission.costs import CostModel
from proxy.admission.fitting import Fitting
from proxy.admission.job import Job, State
from proxy.admission.ledgers import ENGINE_RATIO_START
from proxy.admission.limits import Limits
from proxy.admission.prefix import within
from proxy.admission.residency import Hold
from proxy.admission.slicing import Slicing
from proxy.admission.timeline import PrefillTimeline
from proxy.admission.types import Lane, PoolFacts

BACKOFF_SECONDS = 0.5  # after the engine said "queue full"; doubles while it goes on saying so
BACKOFF_MOST_SECONDS = 5.0


class Pool(Fitting):
    """The ledgers of one pool and what is learnt about it: its pace, its slices, its prefill."""

    def __init__(self, name: str, facts: PoolFacts, limits: Limits) -> None:
        super().__init__(facts, limits)
        self.name = name
        self.costs = CostModel()
        self.holds: list[Hold] = []
        self.timeline = PrefillTimeline(self.costs, limits)
        self.slicing = Slicing(self.costs, limits)
        self.up = True
        self.leaving = False  # it takes nothing new, and will be gone when what runs there has ended
        self.growth_over_budget = 0  # how often a stream outgrew what was left
        self.hold_until = 0.0  # after back-pressure from the engine
        self.backoff_seconds = 0.0  # not 0: nothing got through since then
        self._probe: Job | None = None  # the one that was sent to see whether it does
        self.refresh(facts)

    def refresh(self, facts: PoolFacts) -> None:
        """The backend (re)appeared: its own numbers replace ours, charges stay until jobs end."""
        self.facts = facts
        self.up = True
        self.foreign_tokens = 0
        self.foreign_history.clear()
        self.idle.clear()
        while self.holds:
            self.drop_hold(self.holds[0])
        self.engine_ratio = min(1.0, ENGINE_RATIO_START * facts.conservativeness)
        self._budget_factor = 1.0
        self._size()

    def adopt(self, limits: Limits) -> None:
        """Go by these limits from now on. What has a place keeps it."""
        self.limits = limits
        self.timeline.adopt(limits)
        self.slicing.adopt(limits)
        self._size()

    @property
    def open(self) -> bool:
        """Does it take new work?"""
        return self.up and not self.leaving

    def prefill_free_at(self, now: float) -> float:
        """When all long prefill that has begun will be done, slices not yet sent included."""
        free_at = self.timeline.free_at(now)
        job = self.sliced
        if job is None:
            return free_at
        rest = max(0, job.prompt_tokens - max(job.slice_sent_tokens, self._cached_tokens(job)))
        return free_at + self.timeline.prefill_seconds(job, rest)

    @staticmethod
    def _cached_tokens(job: Job) -> int:
        return job.prompt_tokens - job.uncached_tokens

    # --- the life of a job ----------------------------------------------------------------------------

    def admit(self, job: Job, now: float, reserve_tokens: int, *, sliced: bool = False) -> None:
        """The job takes its place now: it goes to the engine whole, or its first slice does."""
        reserve_tokens = min(reserve_tokens, max(0, self.budget_tokens - self.private_tokens(job)))
        job.prompt_tokens = min(job.prompt_tokens, self.max_prompt_tokens)
        segments = job.segments = within(job.request.segments, job.prompt_tokens)
        job.uncached_tokens = self.uncached_tokens(job)
        self._set_paying(job, self.prefix.acquire(segments))
        self.idle.take(segments)
        self.idle.trim(self.facts.pool_tokens - self.used_tokens - self.prefix.held_tokens)
        job.tail_tokens = max(0, job.prompt_tokens - sum(s.tokens for s in segments))
        job.state = State.SLICING if sliced else State.PREFILL
        job.pool, job.dispatched_at = self.name, now
        job.generated_tokens, job.seen_tokens, job.prefill_done = 0, 0, False
        self.jobs[job.rid] = job
        if self.giant is None and job.lane is Lane.GIANT:
            self.giant = job
        self._tail_tokens += job.tail_tokens
        self.backlog_tokens += job.uncached_tokens
        if not job.long:
            self.short_backlog_tokens += job.uncached_tokens
        self.running_slots += job.request.sequences
        self._set_reserve(job, reserve_tokens)
        if not job.long:
            self._short_tokens += self.own_tokens(job) - job.reserve_tokens
        self._charge_tenant(job, self.own_tokens(job))
        job.cached_tokens = job.prompt_tokens - job.uncached_tokens
        self._recount_engine(job)
        job.predicted_prefill_seconds = self.timeline.prefill_seconds(job, job.uncached_tokens)
        if sliced:
            self.sliced = job
        else:
            self.timeline.sent(job, now)
        if self.backoff_seconds:
            self._probe, self.hold_until = job, now + self.backoff_seconds
        self.version += 1

    def turned_away(self, job: Job, now: float) -> None:
        """The engine's own queue is full. Wait, longer each time, and then try with one request.

        Those that were sent together are turned away together, and count once.
        """
        if now >= self.hold_until or job is self._probe:
            self.backoff_seconds = min(BACKOFF_MOST_SECONDS, max(BACKOFF_SECONDS, 2 * self.backoff_seconds))
            self.hold_until = now + self.backoff_seconds

    def counted(self, job: Job, prompt_tokens: int) -> None:
        """Its exact length is known now: the charge follows."""
        change = max(prompt_tokens - job.prompt_tokens, -job.tail_tokens)
        job.prompt_tokens += change
        job.tail_tokens += change
        self._tail_tokens += change
        uncached = max(1, job.uncached_tokens + change)
        self.backlog_tokens += uncached - job.uncached_tokens
        job.uncached_tokens = uncached
        self.version += 1

    def slice_sent(self, job: Job, end_tokens: int, now: float) -> None:
        """A prefix of its prompt goes to the engine."""
        self.timeline.slice_sent(job, end_tokens, self.slicing.overhead_seconds(end_tokens), now)
        job.slice_ends.append(end_tokens)
        job.slice_bases[end_tokens] = job.sliced_tokens

    def slice_done(self, job: Job, end_tokens: int, now: float) -> None:
        """That prefix is in the engine's cache, or has failed."""
        self.slicing.answered(self.timeline.slice_sent_at(job, end_tokens) or now, now)
        job.slice_ends.remove(end_tokens)
        job.sliced_tokens = max(job.sliced_tokens, end_tokens)
        self.timeline.slice_ended(job, end_tokens, now)
        if not job.prefill_done:
            self._set_uncached(job, job.prompt_tokens - job.sliced_tokens)
        self.version += 1

    def send_rest(self, job: Job, now: float) -> None:
        """The request itself follows its slices."""
        job.state = State.PREFILL
        self._set_uncached(job, job.prompt_tokens - job.slice_sent_tokens)
        self.timeline.sent(job, now)
        self.sliced = None
        self.version += 1

    def prefilled(self, job: Job, now: float) -> None:
        """Its first token came: the prompt is resident and can be shared."""
        if job.prefill_done:
            return
        if self.backoff_seconds:  # it takes requests again
            self.backoff_seconds = self.hold_until = 0.0
        self._leave_backlog(job)
        self._share(job)
        job.first_token_at = job.seen_at = now
        if job.state is State.PREFILL:
            job.state = State.DECODE
        self._recount_engine(job)
        self.version += 1

    def _share(self, job: Job) -> None:
        """Its prefix is there, once: what others computed beside it is not charged to it any more."""
        before = self.own_tokens(job)
        self._set_paying(job, self.prefix.mark_ready(job.segments, job.paying))
        change = self.own_tokens(job) - before
        if change:
            self._charge_tenant(job, change)
            self._short_tokens += 0 if job.long else change

    def progressed(self, job: Job, generated_tokens: int, reserve_tokens: int) -> None:
        """The stream has shown `generated_tokens`; its reserve may have to grow."""
        self._generated_tokens += generated_tokens - job.generated_tokens
        job.generated_tokens = generated_tokens
        if reserve_tokens != job.reserve_tokens:
            self._set_reserve(job, reserve_tokens)
            if self.effective_tokens > self.budget_tokens:
                self.growth_over_budget += 1
            self.version += 1
        self._recount_engine(job)

    def release(self, job: Job) -> None:
        """The engine has let go: every charge comes back, exactly once."""
        del self.jobs[job.rid]
        if job is self.sliced:
            self.sliced = None
        if job is self.giant:
            self.giant = next((other for other in self.jobs.values() if other.lane is Lane.GIANT), None)
        self._charge_tenant(job, -job.tenant_tokens)
        for end_tokens in job.slice_ends:
            self.timeline.slice_ended(job, end_tokens)
        if not job.prefill_done:
            self._leave_backlog(job)
        if not job.long:
            self._short_tokens -= self.own_tokens(job) - job.reserve_tokens - job.taken_tokens
        self._set_reserve(job, 0)
        self._tail_tokens -= job.tail_tokens
        self._generated_tokens -= job.generated_tokens
        self._engine_tokens -= job.engine_tokens
        self.idle.add(self.prefix.release(job.segments, job.paying))
        self.running_slots -= job.request.sequences
        job.engine_tokens, job.tail_tokens, job.generated_tokens = 0.0, 0, 0
        self._set_paying(job, ())
        job.taken_tokens = 0
        job.sliced_tokens, job.slice_boost = 0, 1
        job.slice_ends.clear()
        job.slice_bases.clear()
        if not self.jobs:
            self._engine_tokens = 0.0  # sums of floats leave dust
        self.version += 1

    def hold(self, hold: Hold) -> None:
        """Keep the context of a job that is about to be released."""
        self.prefix.hold(hold.segments)
        self.holds.append(hold)
        self.version += 1

    def drop_hold(self, hold: Hold) -> None:
        """Give a held context up; the engine may evict it now."""
        self.holds.remove(hold)
        self.idle.add(self.prefix.drop(hold.segments))
        self.version += 1

    def take_over(self, job: Job) -> None:
        """The hold it continues has been dropped: the context is its charge now."""
        before = self.own_tokens(job)
        self._set_paying(job, self.prefix.take_over(job.segments, job.paying))
        job.taken_tokens = self.own_tokens(job) - before
        self._charge_tenant(job, job.taken_tokens)

    def _leave_backlog(self, job: Job) -> None:
        job.prefill_done = True
        self.backlog_tokens -= job.uncached_tokens
        if not job.long:
            self.short_backlog_tokens -= job.uncached_tokens
        self.timeline.ended(job)
