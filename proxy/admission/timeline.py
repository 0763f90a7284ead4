"""When will the engine's prefill be free again? One long prefill blocks all others meanwhile.

SGLang gives a prompt in chunked prefill the whole chunk budget of every step, so a short request
sent meanwhile only queues in the engine, where nobody can order it. The timeline predicts, for
each long prompt or slice that was sent, when its prefill starts (after the server has read and
tokenized it) and ends, and corrects itself by the load polls and by the slices' answers.
"""

from itertools import pairwise

from proxy.admission.costs import CostModel
from proxy.admission.job import Job
from proxy.admission.limits import Limits

TOKENIZE_WEIGHT = 0.2
SAFE_SHARE_OF_TOKENIZING = 0.6  # shorts sent this early in it still arrive before the prompt does


class _Span:
    """One stretch of prefill: `tokens` of it, ending `end_depth` tokens into the prompt."""

    __slots__ = ("end_depth", "ends_at", "seen", "sent_at", "sliced", "starts_at", "tokens")

    def __init__(self, tokens: int, end_depth: int, sent_at: float, *, sliced: bool) -> None:
        self.tokens = tokens
        self.end_depth = end_depth
        self.sent_at = sent_at
        self.sliced = sliced
        self.starts_at = self.ends_at = sent_at
        self.seen = False  # a poll has shown it under way


class PrefillTimeline:
    """The long prefills of one pool, in the order they were sent."""

    def __init__(self, costs: CostModel, limits: Limits) -> None:
        self._costs = costs
        self._limits = limits
        self._spans: dict[tuple[str, int], _Span] = {}
        self.tokenize_seconds_per_token = limits.tokenize_seconds_per_token

    def adopt(self, limits: Limits) -> None:
        """Go by these limits from now on; what was learnt stays."""
        self._limits = limits

    @property
    def busy(self) -> bool:
        return bool(self._spans)

    def tokenize_seconds(self, job: Job) -> float:
        """From sending the request until its prompt is at the scheduler; with its ids, at once."""
        if job.ids_tokens is not None:
            return self._limits.send_ahead_seconds
        return job.prompt_tokens * self.tokenize_seconds_per_token

    def prefill_seconds(self, job: Job, uncached_tokens: int) -> float:
        """Predicted prefill of the last `uncached_tokens` of the job's prompt."""
        depth = job.prompt_tokens - uncached_tokens
        return self._costs.prefill_seconds(uncached_tokens, depth)

    # --- what was sent ---------------------------------------------------------------------------

    def sent(self, job: Job, now: float) -> None:
        """The request itself was sent; shorts pass through without a trace."""
        if job.uncached_tokens > self._limits.short_prefill_tokens:
            span = _Span(job.uncached_tokens, job.prompt_tokens, now, sliced=False)
            self._add(job.rid, 0, span, now + self.tokenize_seconds(job), now)

    def slice_sent(self, job: Job, end_tokens: int, overhead_seconds: float, now: float) -> None:
        """A slice up to `end_tokens` was sent, behind those already in flight."""
        span = _Span(end_tokens - job.slice_sent_tokens, end_tokens, now, sliced=True)
        self._add(job.rid, end_tokens, span, now + overhead_seconds, now)

    def ended(self, job: Job) -> None:
        """The request's own prefill is over."""
        self._spans.pop((job.rid, 0), None)

    def slice_ended(self, job: Job, end_tokens: int, now: float | None = None) -> None:
        """A slice was answered: the one behind it begins now, if it was expected to have begun.

        Two of one prompt in the same batch would both compute what the first adds.
        """
        self._spans.pop((job.rid, end_tokens), None)
        following = next(iter(self._spans.values()), None)
        if now is not None and following is not None and following.sliced and now > following.starts_at:
            late = now - following.starts_at
            for span in self._spans.values():
                span.starts_at += late
                span.ends_at += late

    def _add(self, rid: str, end: int, span: _Span, arrives_at: float, now: float) -> None:
        span.starts_at = max(arrives_at, self.free_at(now))
        depth = span.end_depth - span.tokens
        span.ends_at = span.starts_at + self._costs.prefill_seconds(span.tokens, depth)
        self._spans[rid, end] = span

    # --- what may be sent ------------------------------------------------------------------------

    def free_at(self, now: float) -> float:
        """When the last long prefill that was sent will be done."""
        return max(span.ends_at for span in self._spans.values()) if self._spans else now

    def open_for_shorts(self, now: float) -> bool:
        """Would a short sent now be prefilled at once, or only queue in the engine?"""
        for span in self._spans.values():
            safe_until = span.sent_at + SAFE_SHARE_OF_TOKENIZING * (span.starts_at - span.sent_at)
            if not (now < safe_until or now >= span.ends_at - self._limits.send_ahead_seconds):
                return False
        return True

    def open_for_long(self, ahead_seconds: float, now: float, *, most: int = 1) -> bool:
        """May another long prefill be sent that needs `ahead_seconds` to reach the scheduler?"""
        under_way = sum(1 for span in self._spans.values() if now < span.ends_at - ahead_seconds)
        return under_way < most and len(self._spans) <= most

    def wakeup(self, ahead_seconds: float, now: float) -> float | None:
        """The next moment at which something under way is `ahead_seconds` from its end."""
        if not self._spans:
            return None
        times = [s.ends_at - ahead_seconds for s in self._spans.values() if s.ends_at - ahead_seconds > now]
        return min(times, default=None)

    # --- what was seen ---------------------------------------------------------------------------

    def span_seconds(self, job: Job, now: float) -> float | None:
        """How long the prefill of a long job took, if it ends now."""
        span = self._spans.get((job.rid, 0))
        return None if span is None else now - span.starts_at

    def request_sent_at(self, job: Job) -> float:
        """When the request itself was sent: behind its slices, where it has some."""
        span = self._spans.get((job.rid, 0))
        return job.dispatched_at if span is None else span.sent_at

    def slice_sent_at(self, job: Job, end_tokens: int) -> float | None:
        span = self._spans.get((job.rid, end_tokens))
        return None if span is None else span.sent_at

    def depth_of_first(self, waiting_uncached_tokens: int) -> int | None:
        """How deep the prefill under way is, if there is one."""
        for span in self._spans.values():
            return span.end_depth - min(waiting_uncached_tokens, span.tokens)
        return None

    def observe(self, at: float, waiting_uncached_tokens: int) -> None:
        """A poll taken at `at` showed so many tokens still to be prefilled, all requests together."""
        rest = waiting_uncached_tokens
        spans = list(self._spans.values())
        for span in reversed(spans[1:]):
            if at >= span.sent_at and rest >= span.tokens:  # arrived, behind the ones before it
                rest -= span.tokens
        if spans and at >= spans[0].sent_at and not spans[0].sliced:
            self._observe_first(spans[0], at, rest)
        for before, after in pairwise(spans):
            length = after.ends_at - after.starts_at
            after.starts_at = max(after.starts_at, before.ends_at)
            after.ends_at = after.starts_at + length

    def _observe_first(self, span: _Span, at: float, rest: int) -> None:
        tokenizing = span.end_depth * self.tokenize_seconds_per_token
        if rest <= 0:
            if not span.seen and span.starts_at <= at < span.starts_at + tokenizing:
                late = at - span.starts_at  # still being tokenized
                span.starts_at += late
                span.ends_at += late
            return
        rest = min(rest, span.tokens)
        span.ends_at = at + self._costs.prefill_seconds(rest, span.end_depth - rest)
        if not span.seen:
            span.seen = True
            done = self._costs.prefill_seconds(span.tokens - rest, span.end_depth - span.tokens)
            span.starts_at = at - done
            if len(self._spans) == 1 and span.starts_at > span.sent_at:
                self._learn_tokenizing((span.starts_at - span.sent_at) / span.end_depth)

    def _learn_tokenizing(self, seconds_per_token: float) -> None:
        believable = min(seconds_per_token, 4 * self.tokenize_seconds_per_token)
        change = TOKENIZE_WEIGHT * (believable - self.tokenize_seconds_per_token)
        self.tokenize_seconds_per_token += change
