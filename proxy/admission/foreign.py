"""How long traffic that bypasses the proxy will stay, by how long it has stayed so far.

Nobody announces its end. What has lasted a minute is expected to last another: of all guesses that
know no more, the one that is never far off for long. So that a burst on top of a steady flow counts
as a burst, the time is kept for each level: since when there has been more than so much of it.
"""

LEVELS = 64  # of the pool
LEAST_SECONDS = 5.0  # what has just been seen has been there for a poll or two
MOST_SECONDS = 3600.0


class ForeignHistory:
    """Since when there has been more foreign traffic than each 64th of one pool."""

    __slots__ = ("_at_most_at",)

    def __init__(self) -> None:
        self._at_most_at: list[float] | None = None

    def clear(self) -> None:
        """The server has been restarted, and whoever it served is gone."""
        self._at_most_at = None

    def saw(self, at: float, tokens: int, pool_tokens: int) -> None:
        """So much of it was there."""
        if self._at_most_at is None:
            self._at_most_at = [at] * LEVELS
        level = -(-tokens * LEVELS // pool_tokens)
        for index in range(level, LEVELS):
            self._at_most_at[index] = at

    def falls_at(self, now: float, tokens: int, pool_tokens: int) -> float:
        """When it is expected to have fallen to `tokens`."""
        if self._at_most_at is None:
            return now + LEAST_SECONDS
        level = min(LEVELS - 1, max(0, tokens) * LEVELS // pool_tokens)
        lasted = now - self._at_most_at[level]
        return now + min(max(lasted, LEAST_SECONDS), MOST_SECONDS)
