"""The ledgers of one KV pool: what is committed, what is left, and what a job costs.

The symbols are those of docs/algorithm.md:

    K  pool tokens                     B  budget, (1 - headroom) K, lowered after retractions
    C  resident ledger: prompts not already paid for by another request, plus reserves
    W  prefill ledger: uncached prompt tokens sent and not yet answered by a first token
    E  what the engine's own admission formula counts of what was sent
    S  running slots sent

Invariants, checked by the property tests after every event: no ledger is negative; C <= B except
for recorded growth and the short room beside a giant; all ledgers are exactly 0 with no jobs.
"""

from proxy.admission.budget import Budget
from proxy.admission.foreign import ForeignHistory
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.prefix import PrefixLedger
from proxy.admission.residency import IdleCache
from proxy.admission.types import PoolFacts, Segment

ENGINE_RATIO_START = 0.7  # SGLang's `SGLANG_INIT_NEW_TOKEN_RATIO`, x conservativeness


class Ledgers(Budget):
    """What the jobs of one pool hold of it. `Pool` changes them, job by job."""

    def __init__(self, facts: PoolFacts, limits: Limits) -> None:
        super().__init__(facts, limits)
        self.jobs: dict[str, Job] = {}
        self.giant: Job | None = None  # the first of those here
        self.sliced: Job | None = None  # the job whose prompt goes in slices now
        self.prefix = PrefixLedger()
        self.idle = IdleCache()
        self.tenant_tokens: dict[str, int] = {}
        self.backlog_tokens = 0  # W
        self.short_backlog_tokens = 0
        self.running_slots = 0  # S
        self.foreign_tokens = 0
        self.foreign_history = ForeignHistory()
        self.engine_ratio = ENGINE_RATIO_START
        self._tail_tokens = 0
        self._reserve_tokens = 0
        self._short_tokens = 0
        self._engine_tokens = 0.0
        self._generated_tokens = 0

    @property
    def committed_tokens(self) -> int:
        """C."""
        return self.prefix.charged_tokens + self._tail_tokens + self._reserve_tokens

    @property
    def effective_tokens(self) -> int:
        """C, what is held between turns, and what traffic that bypasses the proxy occupies."""
        prefix = self.prefix
        prompts = prefix.charged_tokens + prefix.held_tokens + self._tail_tokens
        return prompts + self._reserve_tokens + self.foreign_tokens

    @property
    def held_tokens(self) -> int:
        """Contexts kept for the next turn of their conversation; not in C."""
        return self.prefix.held_tokens

    @property
    def short_tokens(self) -> int:
        return self._short_tokens

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
    def unfilled_tokens(self) -> int:
        """What the prompt in slices is charged and does not occupy yet."""
        job = self.sliced
        if job is None:
            return 0
        return max(0, min(job.uncached_tokens, job.prompt_tokens - job.slice_sent_tokens))

    # --- what a job costs -----------------------------------------------------------------------------

    def uncached_tokens(self, job: Job) -> int:
        """Prompt tokens the engine will have to prefill, as far as is known."""
        tokens = min(self.max_prompt_tokens, job.prompt_tokens)
        if job.request.segments:
            self._look_up(job)
            tokens -= job.ready_tokens + job.idle_tokens
        return max(1, tokens)

    def private_tokens(self, job: Job) -> int:
        """Prompt tokens that nobody pays for or holds yet: what becomes resident with the job."""
        tokens = min(self.max_prompt_tokens, job.prompt_tokens)
        if job.request.segments:
            self._look_up(job)
            tokens -= job.ready_tokens
        return max(1, tokens)

    def _look_up(self, job: Job) -> None:
        """What is here of its prompt; once for each state of the ledgers."""
        if job.looked_up_in is self and job.looked_up_at == self.version:
            return
        segments = job.request.segments
        count, job.ready_tokens = self.prefix.ready(segments)
        job.idle_tokens = self.idle.known_tokens(segments[count:]) if len(self.idle) else 0
        job.looked_up_in, job.looked_up_at = self, self.version

    def has(self, segment: Segment) -> bool:
        """Is it resident, or probably still in the engine's cache?"""
        return self.prefix.has(segment) or segment in self.idle

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
        return job.tail_tokens + job.reserve_tokens + job.paid_tokens

    # --- changes of one job ---------------------------------------------------------------------------

    def _charge_tenant(self, job: Job, tokens: int) -> None:
        tenant = job.request.tenant
        left = self.tenant_tokens.get(tenant, 0) + tokens
        job.tenant_tokens += tokens
        if left:
            self.tenant_tokens[tenant] = left
        else:
            self.tenant_tokens.pop(tenant, None)

    @staticmethod
    def _set_paying(job: Job, paying: tuple[bool, ...]) -> None:
        job.paying = paying
        job.paid_tokens = sum(s.tokens for s, pays in zip(job.segments, paying, strict=False) if pays)

    def _set_uncached(self, job: Job, tokens: int) -> None:
        tokens = min(max(1, tokens), job.uncached_tokens)
        self.backlog_tokens -= job.uncached_tokens - tokens
        job.uncached_tokens = tokens

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

    def set_engine_ratio(self, ratio: float) -> None:
        if abs(ratio - self.engine_ratio) < 0.01:
            return
        self.engine_ratio = ratio
        for job in self.jobs.values():
            self._recount_engine(job)
        self.version += 1
