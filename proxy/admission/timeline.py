"""When will the engine's prefill be free again? One long prefill blocks all others meanwhile.

SGLang gives a prompt in chunked prefill the whole chunk budget of every step, so a short request
sent meanwhile only queues in the engine, where nobody can order it. The timeline predicts, for
each long prompt that was sent, when its prefill starts (after the server has tokenized it) and
ends, and corrects itself by the load polls.
"""

from itertools import pairwise

from proxy.admission.costs import CostModel
from proxy.admission.job import Job
from proxy.admission.limits import Limits

TOKENIZE_WEIGHT = 0.2
SAFE_SHARE_OF_TOKENIZING = 0.6  # shorts sent this early in it still arrive before the prompt does


class _Span:
    __slots__ = ("ends_at", "job", "seen", "starts_at")

    def __init__(self, job: Job, starts_at: float, ends_at: float) -> None:
        self.job = job
        self.starts_at = starts_at
        self.ends_at = ends_at
        self.seen = False  # a poll has shown it under way


class PrefillTimeline:
    """The long prefills of one pool, in the order they were sent."""

    def __init__(self, costs: CostModel, limits: Limits) -> None:
        self._costs = costs
        self._limits = limits
        self._spans: dict[str, _Span] = {}
        self.tokenize_seconds_per_token = limits.tokenize_seconds_per_token

    @property
    def busy(self) -> bool:
        return bool(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def tokenize_seconds(self, job: Job) -> float:
        return job.request.prompt_tokens * self.tokenize_seconds_per_token

    def prefill_seconds(self, job: Job, uncached_tokens: int) -> float:
        depth = job.request.prompt_tokens - uncached_tokens
        return self._costs.prefill_seconds(uncached_tokens, depth)

    def sent(self, job: Job, now: float) -> None:
        """The job has just been sent; shorts pass through without a trace."""
        job.predicted_prefill_seconds = self.prefill_seconds(job, job.uncached_tokens)
        if not job.long:
            return
        starts_at = max(now + self.tokenize_seconds(job), self.free_at(now))
        self._spans[job.rid] = _Span(job, starts_at, starts_at + job.predicted_prefill_seconds)

    def ended(self, job: Job) -> None:
        self._spans.pop(job.rid, None)

    def free_at(self, now: float) -> float:
        """When the last long prefill that was sent will be done."""
        return max((span.ends_at for span in self._spans.values()), default=now)

    def open_for_shorts(self, now: float) -> bool:
        """Would a short sent now be prefilled at once, or only queue in the engine?"""
        ahead = self._limits.send_ahead_seconds
        for span in self._spans.values():
            tokenizing = span.starts_at - span.job.dispatched_at
            safe_until = span.job.dispatched_at + SAFE_SHARE_OF_TOKENIZING * tokenizing
            if not (now < safe_until or now >= span.ends_at - ahead):
                return False
        return True

    def open_for_long(self, job: Job, now: float) -> bool:
        """May another long be sent, so that it is tokenized when the one under way ends?"""
        ahead = self.tokenize_seconds(job)
        under_way = sum(1 for span in self._spans.values() if now < span.ends_at - ahead)
        return (
            under_way < self._limits.max_long_prefills and len(self._spans) <= self._limits.max_long_prefills
        )

    def wakeup(self, now: float) -> float | None:
        """The next moment at which `open_for_shorts` may change by itself."""
        ahead = self._limits.send_ahead_seconds
        times = [s.ends_at - ahead for s in self._spans.values() if s.ends_at - ahead > now]
        return min(times, default=None)

    def wakeup_long(self, job: Job, now: float) -> float | None:
        ahead = self.tokenize_seconds(job)
        times = [s.ends_at - ahead for s in self._spans.values() if s.ends_at - ahead > now]
        return min(times, default=None)

    def observe(self, at: float, waiting_uncached_tokens: int) -> None:
        """A poll taken at `at` showed so many tokens still to be prefilled, all requests together."""
        rest = waiting_uncached_tokens
        spans = list(self._spans.values())
        for index in range(len(spans) - 1, -1, -1):
            span = spans[index]
            if at < span.job.dispatched_at:
                continue
            if index > 0:
                if rest >= span.job.uncached_tokens:  # arrived, behind the ones before it
                    rest -= span.job.uncached_tokens
                continue
            self._observe_first(span, at, rest)
        for before, after in pairwise(spans):
            length = after.ends_at - after.starts_at
            after.starts_at = max(after.starts_at, before.ends_at)
            after.ends_at = after.starts_at + length

    def span_seconds(self, job: Job, now: float) -> float | None:
        """How long the prefill of a long job took, if it ends now."""
        span = self._spans.get(job.rid)
        return None if span is None else now - span.starts_at

    def depth_of_first(self, waiting_uncached_tokens: int) -> int | None:
        """How deep the prefill under way is, if there is one."""
        for span in self._spans.values():
            rest = min(waiting_uncached_tokens, span.job.uncached_tokens)
            return span.job.request.prompt_tokens - rest
        return None

    def _observe_first(self, span: _Span, at: float, rest: int) -> None:
        job = span.job
        if rest <= 0:
            if not span.seen and span.starts_at <= at < span.starts_at + self.tokenize_seconds(job):
                late = at - span.starts_at  # still being tokenized
                span.starts_at += late
                span.ends_at += late
            return
        rest = min(rest, job.uncached_tokens)
        done = job.uncached_tokens - rest
        depth = job.request.prompt_tokens - rest
        span.ends_at = at + self._costs.prefill_seconds(rest, depth)
        if not span.seen:
            span.seen = True
            cached = job.request.prompt_tokens - job.uncached_tokens
            started = at - self._costs.prefill_seconds(done, cached)
            span.starts_at = min(started, at)
            if len(self._spans) == 1 and started > job.dispatched_at:
                per_token = (started - job.dispatched_at) / job.request.prompt_tokens
                per_token = min(per_token, 4 * self.tokenize_seconds_per_token)
                self.tokenize_seconds_per_token += TOKENIZE_WEIGHT * (
                    per_token - self.tokenize_seconds_per_token
                )
