"""The ledgers of one KV pool: what is committed, what is left, and whether a job fits.

The symbols are those of docs/algorithm.md:

    K  pool tokens                     B  budget, (1 - headroom) K, lowered after retractions
    C  resident ledger: prompts not already paid for by another request, plus reserves
    W  prefill ledger: uncached prompt tokens sent and not yet answered by a first token
    E  what the engine's own admission formula counts of what was sent
    S  running slots sent

Invariants, checked by the property tests after every event: no ledger is negative; C <= B except
for recorded growth and the short room beside a giant; all ledgers are exactly 0 with no jobs.
"""

from proxy.admission.costs import CostModel
from proxy.admission.foreign import ForeignHistory
from proxy.admission.job import ENGINE_CLIP_TOKENS, Job, State
from proxy.admission.limits import Limits
from proxy.admission.prefix import PrefixLedger, within
from proxy.admission.residency import Hold, IdleCache
from proxy.admission.slicing import Slicing
from proxy.admission.timeline import PrefillTimeline
from proxy.admission.types import Lane, PoolFacts

ENGINE_RATIO_START = 0.7  # SGLang's `SGLANG_INIT_NEW_TOKEN_RATIO`, x conservativeness
BACKOFF_SECONDS = 0.5  # after the engine said "queue full"; doubles while it goes on saying so
BACKOFF_MOST_SECONDS = 5.0
EXACT_ROOM_SHARE = 0.9
BUDGET_FLOOR = 0.5  # however often the engine retracts, half of the budget stays usable
BUDGET_CUT = 0.9
BUDGET_RISE = 1.01
BUDGET_RISE_SECONDS = 60.0


class Pool:
    """One KV pool and the jobs that hold a place in it."""

    def __init__(self, name: str, facts: PoolFacts, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.costs = CostModel()
        self.prefix = PrefixLedger()
        self.idle = IdleCache()
        self.holds: list[Hold] = []
        self.tenant_tokens: dict[str, int] = {}
        self.timeline = PrefillTimeline(self.costs, limits)
        self.slicing = Slicing(self.costs, limits)
        self.sliced: Job | None = None  # the job whose prompt goes in slices now
        self.jobs: dict[str, Job] = {}
        self.up = True
        self.leaving = False  # it takes nothing new, and will be gone when what runs there has ended
        self.version = 0  # changes whenever a ledger does: what was derived from it is stale
        self.backlog_tokens = 0  # W
        self.short_backlog_tokens = 0
        self.running_slots = 0  # S
        self.foreign_tokens = 0
        self.foreign_history = ForeignHistory()
        self.growth_over_budget = 0  # how often a stream outgrew what was left
        self.hold_until = 0.0  # after back-pressure from the engine
        self.backoff_seconds = 0.0  # not 0: nothing got through since then
        self._probe: Job | None = None  # the one that was sent to see whether it does
        self._tail_tokens = 0
        self._reserve_tokens = 0
        self._short_tokens = 0
        self._engine_tokens = 0.0
        self._generated_tokens = 0
        self._budget_factor = 1.0
        self._budget_changed_at = 0.0
        self.engine_ratio = ENGINE_RATIO_START
        self.facts = facts
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
        self.version += 1

    def adopt(self, limits: Limits) -> None:
        """Go by these limits from now on. What has a place keeps it."""
        self.limits = limits
        self.timeline.adopt(limits)
        self.slicing.adopt(limits)
        self.version += 1

    @property
    def open(self) -> bool:
        """Does it take new work?"""
        return self.up and not self.leaving

    # --- sizes --------------------------------------------------------------------------------

    @property
    def budget_tokens(self) -> int:
        """B."""
        return int(self.facts.pool_tokens * (1 - self.limits.pool_headroom) * self._budget_factor)

    @property
    def committed_tokens(self) -> int:
        """C."""
        return self.prefix.charged_tokens + self._tail_tokens + self._reserve_tokens

    @property
    def effective_tokens(self) -> int:
        """C, what is held between turns, and what traffic that bypasses the proxy occupies."""
        return self.committed_tokens + self.prefix.held_tokens + self.foreign_tokens

    @property
    def held_tokens(self) -> int:
        """Contexts kept for the next turn of their conversation; not in C."""
        return self.prefix.held_tokens

    @property
    def short_tokens(self) -> int:
        return self._short_tokens

    @property
    def express_tokens(self) -> int:
        return int(self.facts.pool_tokens * self.limits.express_share)

    @property
    def unused_express_tokens(self) -> int:
        return max(0, self.express_tokens - self._short_tokens)

    @property
    def engine_tokens(self) -> float:
        """E: residents in full, and the engine's own count of their future output.

        Held contexts are evictable to the engine; counting them keeps it from evicting them.
        """
        return self.prefix.held_tokens + self.prefix.charged_tokens + self._tail_tokens + self._engine_tokens

    @property
    def used_tokens(self) -> int:
        """U: most that our requests can occupy in the engine now."""
        return self.prefix.charged_tokens + self._tail_tokens + self._generated_tokens

    @property
    def free_tokens(self) -> int:
        return max(0, self.budget_tokens - self.effective_tokens)

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt this pool can ever take (inclusive)."""
        longest = self.facts.max_request_tokens or self.facts.pool_tokens - 6
        if self.facts.context_tokens is not None:
            longest = min(longest, self.facts.context_tokens - 1)
        return longest

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

    @property
    def lent_tokens(self) -> int:
        """What shorts use at present of the charge of the prompt in slices."""
        over = self.effective_tokens - self.short_ceiling_tokens
        return max(0, min(over, self.unfilled_tokens))

    def committed_by_lane(self) -> dict[Lane, int]:
        """C by lane, what is lent counted once: with the shorts that use it."""
        by_lane = dict.fromkeys(Lane, 0)
        by_lane[Lane.SHORT] = self._short_tokens
        rest = self.committed_tokens - self._short_tokens - self.lent_tokens
        giants = sum(self.own_tokens(job) for job in self.jobs.values() if job.lane is Lane.GIANT)
        by_lane[Lane.GIANT] = min(giants, rest)
        by_lane[Lane.LONG] = rest - by_lane[Lane.GIANT]
        return by_lane

    # --- what a job costs ---------------------------------------------------------------------

    def uncached_tokens(self, job: Job) -> int:
        """Prompt tokens the engine will have to prefill, as far as is known."""
        segments = job.request.segments
        if not segments:
            return max(1, min(job.prompt_tokens, self.max_prompt_tokens))
        count, ready = self.prefix.ready(segments)
        idle = self.idle.known_tokens(segments[count:]) if len(self.idle) else 0
        return max(1, min(job.prompt_tokens, self.max_prompt_tokens) - ready - idle)

    def private_tokens(self, job: Job) -> int:
        """Prompt tokens that nobody pays for or holds yet: what becomes resident with the job."""
        _, ready = self.prefix.ready(job.request.segments)
        return max(1, min(job.prompt_tokens, self.max_prompt_tokens) - ready)

    def need_tokens(self, job: Job, reserve_tokens: int) -> int:
        """What C would grow by: its reserve gives way where prompt and reserve are over B."""
        private = self.private_tokens(job)
        return min(private + reserve_tokens, max(self.budget_tokens, private))

    def is_giant(self, need_tokens: int) -> bool:
        """More than is ever left beside the express share."""
        return need_tokens + self.express_tokens > self.budget_tokens

    def own_tokens(self, job: Job) -> int:
        """What the ledger gets back when the job ends and nobody shares its prompt.

        A context that was held for it counts as its own, not as what shorts take of their share.
        """
        paid = sum(s.tokens for s, pays in zip(job.segments, job.paying, strict=False) if pays)
        return job.tail_tokens + job.reserve_tokens + paid

    @property
    def giant(self) -> Job | None:
        for job in self.jobs.values():
            if job.lane is Lane.GIANT:
                return job
        return None

    # --- does it fit ---------------------------------------------------------------------------

    def fits(self, job: Job, reserve_tokens: int) -> bool:
        """C, E and S together; an empty pool takes anything the engine itself would take."""
        if not self.jobs and self.foreign_tokens == 0 and not self.prefix.held_tokens:
            return True
        need = self.need_tokens(job, reserve_tokens)
        lent = self._lent_tokens(job)
        return (
            self._fits_resident(job, need, lent)
            and self._fits_engine(job, need - min(reserve_tokens, need), lent)
            and self._fits_slots(job)
        )

    @property
    def unfilled_tokens(self) -> int:
        """What the prompt in slices is charged and does not occupy yet."""
        job = self.sliced
        if job is None:
            return 0
        return max(0, min(job.uncached_tokens, job.prompt_tokens - job.slice_sent_tokens))

    def _lent_tokens(self, job: Job) -> int:
        """What a short may borrow of it: half, so that most of it is back when the slices get there.

        Slices wait for the rest (`slice_fits`); meanwhile nothing stalls the decodes they wait for.
        """
        if job.long or self.sliced is None:
            return 0
        return max(0, self.unfilled_tokens // 2 - self.facts.chunk_tokens)

    def slice_fits(self, tokens: int) -> bool:
        """Is there room for the next slice, whatever was lent meanwhile?"""
        filled = self.effective_tokens - self.unfilled_tokens
        return filled + tokens <= max(self.short_ceiling_tokens, self.budget_tokens) or self.alone

    @property
    def alone(self) -> bool:
        """Does the prompt in slices have the pool to itself?"""
        return len(self.jobs) == 1 and self.foreign_tokens == 0 and not self.prefix.held_tokens

    def lacks(self, job: Job, reserve_tokens: int) -> str:
        """Which ledgers say no, by their symbols: "" when it fits, "C", "ES", ..."""
        if self.fits(job, reserve_tokens):
            return ""
        need = self.need_tokens(job, reserve_tokens)
        lent = self._lent_tokens(job)
        found = "" if self._fits_resident(job, need, lent) else "C"
        found += "" if self._fits_engine(job, need - min(reserve_tokens, need), lent) else "E"
        return found + ("" if self._fits_slots(job) else "S")

    def misfits(self, job: Job, reserve_tokens: int) -> list[str]:
        """`fits` in words: what is short, and which number says so."""
        others = (
            f"; traffic that bypasses the proxy takes {self.foreign_tokens}" if self.foreign_tokens else ""
        )
        need = self.need_tokens(job, reserve_tokens)
        words = {
            "C": f"{need} KV tokens are needed, {self.free_tokens} are free{others}",
            "E": "the server would queue it: its own reserve for running outputs is too large",
            "S": f"{self.running_slots} of {self.facts.max_running_requests} running slots are taken",
        }
        return [words[ledger] for ledger in self.lacks(job, reserve_tokens)]

    def _fits_resident(self, job: Job, need: int, lent: int) -> bool:
        if job.lane is Lane.LONG:
            return self.effective_tokens + need + self.unused_express_tokens <= self.budget_tokens
        if job.lane is Lane.GIANT:
            return self.effective_tokens + need <= need + self.short_room_beside(
                need, exact=job.ids_tokens is not None
            )
        return self.effective_tokens + need <= self.short_ceiling_tokens + lent

    @property
    def short_ceiling_tokens(self) -> int:
        """B, or a little of the headroom where a giant would leave shorts no room at all."""
        giant = self.giant
        if giant is None:
            return self.budget_tokens
        held = self.own_tokens(giant)
        return max(
            self.budget_tokens, held + self.short_room_beside(held, exact=giant.ids_tokens is not None)
        )

    def short_room_beside(self, giant_tokens: int, *, exact: bool) -> int:
        """What shorts may hold beside a giant: what it leaves of B, or a little of the headroom.

        The headroom is there for wrong counts: beside a giant whose ids are known most of it is room.
        """
        roof = self.facts.pool_tokens - 2 * self.facts.page_tokens - giant_tokens
        wanted = self.limits.min_short_room_tokens
        if exact:
            wanted = max(wanted, int(EXACT_ROOM_SHARE * roof))
        least = max(0, min(wanted, roof))
        return max(self.budget_tokens - giant_tokens, least)

    @property
    def only_shorts(self) -> bool:
        """Is everything that holds a place here a short, ours and nobody else's?"""
        return (
            self.foreign_tokens == 0
            and not self.held_tokens
            and not any(job.long for job in self.jobs.values())
        )

    def _fits_engine(self, job: Job, prompt_tokens: int, lent: int) -> bool:
        most = job.request.max_tokens
        job_output = ENGINE_CLIP_TOKENS if most is None else min(most, ENGINE_CLIP_TOKENS)
        asked = prompt_tokens + job_output * job.request.sequences + self.facts.page_tokens
        return self.engine_tokens + self.foreign_tokens + asked <= self.facts.pool_tokens + lent

    def _fits_slots(self, job: Job) -> bool:
        slots = self.facts.max_running_requests
        if slots is None:
            return True
        if job.long:
            slots -= max(1, int(slots * self.limits.short_slot_share))
        return self.running_slots + job.request.sequences <= slots or self.running_slots == 0

    # --- changes -------------------------------------------------------------------------------

    def admit(self, job: Job, now: float, reserve_tokens: int, *, sliced: bool = False) -> None:
        """The job takes its place now: it goes to the engine whole, or its first slice does."""
        reserve_tokens = min(reserve_tokens, max(0, self.budget_tokens - self.private_tokens(job)))
        job.prompt_tokens = min(job.prompt_tokens, self.max_prompt_tokens)
        segments = job.segments = within(job.request.segments, job.prompt_tokens)
        job.uncached_tokens = self.uncached_tokens(job)
        job.paying = self.prefix.acquire(segments)
        self.idle.take(segments)
        self.idle.trim(self.facts.pool_tokens - self.used_tokens - self.prefix.held_tokens)
        job.tail_tokens = max(0, job.prompt_tokens - sum(s.tokens for s in segments))
        job.state = State.SLICING if sliced else State.PREFILL
        job.pool, job.dispatched_at = self.name, now
        job.generated_tokens, job.seen_tokens, job.prefill_done = 0, 0, False
        self.jobs[job.rid] = job
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
        job.paying = self.prefix.mark_ready(job.segments, job.paying)
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
        job.engine_tokens, job.tail_tokens, job.generated_tokens, job.paying = 0.0, 0, 0, ()
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
        job.paying = self.prefix.take_over(job.segments, job.paying)
        job.taken_tokens = self.own_tokens(job) - before
        self._charge_tenant(job, job.taken_tokens)

    def cut_budget(self, now: float) -> None:
        """The engine had to retract, or finds no room for what it was sent: there is less than we thought."""
        self._budget_factor = max(BUDGET_FLOOR, self._budget_factor * BUDGET_CUT)
        self._budget_changed_at = now
        self.version += 1

    def raise_budget(self, now: float) -> None:
        """A quiet minute: a little of the budget comes back."""
        if self._budget_factor < 1.0 and now - self._budget_changed_at >= BUDGET_RISE_SECONDS:
            self._budget_factor = min(1.0, self._budget_factor * BUDGET_RISE)
            self._budget_changed_at = now
            self.version += 1

    def set_engine_ratio(self, ratio: float) -> None:
        if abs(ratio - self.engine_ratio) < 0.01:
            return
        self.engine_ratio = ratio
        for job in self.jobs.values():
            self._recount_engine(job)
        self.version += 1

    def _charge_tenant(self, job: Job, tokens: int) -> None:
        tenant = job.request.tenant
        left = self.tenant_tokens.get(tenant, 0) + tokens
        job.tenant_tokens += tokens
        if left:
            self.tenant_tokens[tenant] = left
        else:
            self.tenant_tokens.pop(tenant, None)

    def _set_uncached(self, job: Job, tokens: int) -> None:
        tokens = min(max(1, tokens), job.uncached_tokens)
        self.backlog_tokens -= job.uncached_tokens - tokens
        job.uncached_tokens = tokens

    def _leave_backlog(self, job: Job) -> None:
        job.prefill_done = True
        self.backlog_tokens -= job.uncached_tokens
        if not job.long:
            self.short_backlog_tokens -= job.uncached_tokens
        self.timeline.ended(job)

    def _set_reserve(self, job: Job, tokens: int) -> None:
        change = tokens - job.reserve_tokens
        job.reserve_tokens = tokens
        self._reserve_tokens += change
        if not job.long:
            self._short_tokens += change

    def _recount_engine(self, job: Job) -> None:
        counted = job.generated_tokens + job.engine_output_tokens(self.engine_ratio)
        self._engine_tokens += counted - job.engine_tokens
        job.engine_tokens = counted
