"""When to say no, and what to say about coming back."""

import math

from proxy.admission.pool import Pool
from proxy.admission.types import Request

UNKNOWN_RATE_SLACK = 3.0  # before the prefill rate is known, refuse only what is far beyond hope
PROMISE_MARGIN = 1.25  # a promise is kept: better refuse at once than after the whole wait
JITTER = 0.1  # share by which equal refusals are spread
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


class Burst:
    """Counts refusals in a row, so that the k-th is told to come back k services later."""

    __slots__ = ("_at", "_turns")

    def __init__(self) -> None:
        self._turns = 0.0  # seconds of service already promised to refused ones
        self._at = -math.inf

    def next_turn(self, now: float, service_seconds: float) -> float:
        """Seconds of others' service to wait out first; what was promised melts as time passes."""
        self._turns = max(0.0, self._turns - (now - self._at)) if self._turns else 0.0
        self._at = now
        turn = self._turns
        self._turns += max(0.01, service_seconds)
        return turn


def retry_after_seconds(predicted_wait: float, wait_limit: float, turn_seconds: float, spread: int) -> float:
    """When a retry will probably be admitted: the queue has then fallen to half of the limit."""
    base = max(1.0, predicted_wait - wait_limit / 2) + turn_seconds
    jitter = (spread % 1000) / 1000 * JITTER
    return base * (1.0 + jitter)


def spread_after(seconds: float, spread: int) -> float:
    """A known time, a little later for some than for others."""
    return max(1.0, seconds) * (1.0 + (spread % 1000) / 1000 * JITTER)


def spread_seconds(spread: int) -> float:
    """With no backend to predict from: a point in an interval, so that clients don't return as one."""
    low, high = NO_BACKEND_RETRY_SECONDS
    return low + (high - low) * (spread % 1000) / 1000
