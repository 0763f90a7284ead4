"""When to say no, and what to say about coming back."""

import math

from proxy.admission.backfill import expected_seconds
from proxy.admission.job import Job
from proxy.admission.pool import Pool
from proxy.admission.types import Request

UNKNOWN_RATE_SLACK = 3.0  # before the prefill rate is known, refuse only what is far beyond hope
PROMISE_MARGIN = 1.25  # a promise is kept: better refuse at once than after the whole wait
JITTER = 0.1  # share by which equal refusals are spread
RETURN_SPACING = 1.25  # of the time that serving one takes: some of the room is for newcomers
AHEAD_SLACK = 10
LONGEST_RETURN_SECONDS = 60.0  # who would have to stay away for longer is told not to come back by itself
NO_BACKEND_RETRY_SECONDS = (1.0, 10.0)


def limit_exceeded(pool: Pool, request: Request) -> int | None:
    """The limit that keeps `request` out of `pool` for ever, in prompt tokens; None: it can fit.

    An estimated count is given the benefit of its `uncertainty`: the engine has the last word.
    """
    surely = request.prompt_tokens * (1.0 - request.uncertainty)
    ceiling = pool.limits.max_prompt_tokens
    if ceiling is not None and surely > ceiling:
        return ceiling
    if surely > pool.max_prompt_tokens:
        return pool.max_prompt_tokens
    context = pool.facts.context_tokens
    if context is not None and request.max_tokens is not None and surely + request.max_tokens > context:
        return max(0, context - request.max_tokens)
    return None


class Returns:
    """When the refused of a crowd were told to come back: one after the other, as fast as they can be served.

    What is promised is a moment, not a delay: it does not melt while those that were admitted keep
    the server busy. So a crowd that was sent away comes back as a queue, and newcomers get in between.
    """

    __slots__ = ("_last_at", "_told_at", "_too_long_since")

    def __init__(self) -> None:
        self._last_at = -math.inf  # of those who will come back
        self._told_at = -math.inf  # of all
        self._too_long_since = -math.inf  # those told too long are spread behind each other

    def seconds(self, now: float, earliest_seconds: float, service_seconds: float) -> float:
        """How long the next one is told to stay away. Who is told too long takes nobody's turn."""
        earliest, spacing = now + earliest_seconds, RETURN_SPACING * service_seconds
        at = max(earliest, self._last_at + spacing)
        if at - now <= LONGEST_RETURN_SECONDS:
            self._last_at = at
        else:
            if now - self._too_long_since > LONGEST_RETURN_SECONDS:  # the first of them is back, or gone
                self._too_long_since, self._told_at = now, -math.inf
            at = max(at, self._told_at + spacing)
        self._told_at = at
        return at - now


def service_seconds(pool: Pool, job: Job, reserve_tokens: int, wait: float, ahead: int) -> float:
    """What serving it takes of the server: its prefill, and its share of the pool for its whole stay.

    At least what each of the `ahead` requests that wait before it makes it wait: what holds them up
    may be something else. A few tell little, since one that runs may be what they all wait for.
    """
    prefill = pool.timeline.prefill_seconds(job, pool.uncached_tokens(job))
    share = min(1.0, pool.need_tokens(job, reserve_tokens) / max(1, pool.budget_tokens))
    own = prefill + share * expected_seconds(pool, job, reserve_tokens)
    return max(own, wait / (ahead + AHEAD_SLACK))


def earliest_return_seconds(predicted_wait: float, wait_limit: float) -> float:
    """When a retry may be admitted: the queue has then fallen to half of the limit."""
    return max(1.0, predicted_wait - wait_limit / 2)


def spread_after(seconds: float, spread: int) -> float:
    """A known time, a little later for some than for others."""
    return max(1.0, seconds) * (1.0 + (spread % 1000) / 1000 * JITTER)


def spread_seconds(spread: int) -> float:
    """With no backend to predict from: a point in an interval, so that clients don't return as one."""
    low, high = NO_BACKEND_RETRY_SECONDS
    return low + (high - low) * (spread % 1000) / 1000
