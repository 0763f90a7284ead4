"""Sliced prefill: a long prompt enters as growing prefixes, so that shorts get in between.

SGLang gives a prompt in chunked prefill every step until it is done: 3.7 s for 64K tokens on an
H200, 20 s for 180K, in which nobody else gets a first token. A prefix sent on its own ends after
its own tokens, stays in the radix cache, and the next, longer one continues from there. The
slice is sized by time: n such that n (a + b (depth + n/2)) is about `slice_seconds` while shorts
have been arriving, and the engine's whole chunk while none has.

Each slice has a fixed price, since the server reads the ids of the whole prefix again. It is
hidden by sending the next slice while the one before it still runs, and learnt to know how early.
"""

from collections import deque
from math import lcm

from proxy.admission.costs import CostModel
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.types import PoolFacts

ALIGN_TOKENS = 64  # hybrid models keep their state only at such boundaries
MIN_SLICE_TOKENS = 1024  # smaller ones use the GPU badly and pay the fixed price for little
SHORTS_RECENT_SECONDS = 5.0  # a short seen this lately may have a successor
OVERHEAD_SECONDS = 0.008  # of a slice: HTTP, scheduling
OVERHEAD_SECONDS_PER_TOKEN = 4e-7  # reading the ids of its prefix: 25-75 ms at 60-180K
COMPUTE_SHARE = 0.8
REST_SHARE = 1.5  # of a slice, for the decodes that shorts without room wait for
UNKNOWN_RATE_SHARE = 0.5  # of its time, while a slice might take twice as long as believed
MISSES_KEPT = 10
MISSES_ALLOWED = 2
OFF_SECONDS = 600.0


class Slicing:
    """Decides for one pool whether and how far to slice; knows nothing of requests' contents."""

    def __init__(self, costs: CostModel, limits: Limits) -> None:
        self._costs = costs
        self._limits = limits
        self._outcomes: deque[bool] = deque(maxlen=MISSES_KEPT)
        self._off_until = 0.0
        self._short_seen_at = -SHORTS_RECENT_SECONDS
        self.misses = 0
        self.rested_at = 0.0  # by then decodes have had their time since the last slice,
        self.half_rested_at = 0.0  # or half of it

    def adopt(self, limits: Limits) -> None:
        """Go by these limits from now on; what was learnt stays."""
        self._limits = limits

    def short_seen(self, now: float) -> None:
        """A short request arrived: keep the slices small for a while."""
        self._short_seen_at = now

    def shorts_recent(self, now: float) -> bool:
        return now - self._short_seen_at <= SHORTS_RECENT_SECONDS

    def off(self, now: float) -> bool:
        """Has the engine lost too many slices of late?"""
        return now < self._off_until

    def applies(self, job: Job, uncached_tokens: int, facts: PoolFacts, now: float) -> bool:
        """Should this job's prefill go in slices?"""
        if (
            self._limits.slice_seconds <= 0
            or self._limits.slice_max_tokens == 0
            or not facts.radix_cache
            or self.off(now)
        ):
            return False
        return job.request.sliceable and not job.unsliceable and uncached_tokens > self.most_tokens(facts)

    def most_tokens(self, facts: PoolFacts) -> int:
        return max(MIN_SLICE_TOKENS, self._limits.slice_max_tokens or facts.chunk_tokens)

    @property
    def compute_seconds(self) -> float:
        """What of a slice's time is the engine's own work; the rest is its fixed price."""
        return COMPUTE_SHARE * self._limits.slice_seconds

    def overhead_seconds(self, end_tokens: int) -> float:
        """From sending a slice until the engine starts on it."""
        return OVERHEAD_SECONDS + OVERHEAD_SECONDS_PER_TOKEN * end_tokens

    def next_end(self, job: Job, facts: PoolFacts, now: float) -> int | None:
        """Where the next slice ends; None when what remains goes with the request itself."""
        if job.ids_tokens is None:
            return None
        depth = max(job.slice_sent_tokens, job.prompt_tokens - job.uncached_tokens)
        align = lcm(max(1, facts.page_tokens), ALIGN_TOKENS)
        last = (job.ids_tokens - 1) // align * align
        size = self.most_tokens(facts) * job.slice_boost
        if self.shorts_recent(now):
            seconds = self.compute_seconds * (1.0 if self._costs.known else UNKNOWN_RATE_SHARE)
            timed = self._costs.prefill_tokens_within(seconds, depth) if self._costs.observed_tokens else 0
            size = max(MIN_SLICE_TOKENS, min(size, timed * job.slice_boost))
        end = min((depth + size) // align * align, last)
        return end if end > depth else None

    def answered(self, sent_at: float, now: float) -> None:
        """A slice that was sent at `sent_at` is done: somewhat more may go to running decodes."""
        rest_seconds = REST_SHARE * min(now - sent_at, 4 * self._limits.slice_seconds)
        self.rested_at = now + rest_seconds
        self.half_rested_at = now + rest_seconds / 2

    def hit(
        self,
        job: Job,
        before_tokens: int,
        end_tokens: int,
        cached_tokens: int | None,
        facts: PoolFacts,
        now: float,
    ) -> bool:
        """Did the engine still have what had been confirmed when the slice was sent?

        A miss is quadratic work: two in ten turn slicing off for ten minutes.
        """
        align = lcm(max(1, facts.page_tokens), ALIGN_TOKENS)
        hit = cached_tokens is not None and cached_tokens >= before_tokens - align
        self._outcomes.append(hit)
        known = cached_tokens is not None and cached_tokens >= end_tokens - align
        job.slice_boost = min(64, job.slice_boost * 4) if known else 1  # idle in the cache: skip ahead
        if not hit:
            self.misses += 1
            job.unsliceable = True
            if self._outcomes.count(False) >= MISSES_ALLOWED:
                self._off_until = now + OFF_SECONDS
                self._outcomes.clear()
        return hit
