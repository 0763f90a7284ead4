"""The last two minutes for somebody who watches: times to first token by lane, and what was refused.

Kept whether anybody watches or not, so it costs next to nothing: a fixed ring of buckets.
"""

from collections import Counter

from proxy.admission.types import Lane, Reason

BUCKET_SECONDS = 2.0
BUCKETS = 60


class _Ring:
    """The largest value of each bucket, 0 where there was none. Old buckets are cleared as time passes."""

    __slots__ = ("_newest", "_worst")

    def __init__(self) -> None:
        self._worst = [0.0] * BUCKETS
        self._newest = 0  # number of the newest bucket, counted from the clock's zero

    def note(self, now: float, value: float) -> None:
        self._turn(now)
        at = self._newest % BUCKETS
        if value > self._worst[at]:
            self._worst[at] = value

    def values(self, now: float) -> list[float]:
        """Oldest first."""
        self._turn(now)
        cut = self._newest % BUCKETS + 1
        return self._worst[cut:] + self._worst[:cut]

    def _turn(self, now: float) -> None:
        number = int(now / BUCKET_SECONDS)
        for passed in range(max(self._newest + 1, number - BUCKETS + 1), number + 1):
            self._worst[passed % BUCKETS] = 0.0
        self._newest = max(self._newest, number)


class Recent:
    """What was seen lately. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._first_tokens = {lane: _Ring() for lane in Lane}
        self.last_ttft_seconds: dict[Lane, float] = {}
        self.refusals: Counter[Reason] = Counter()

    def first_token(self, now: float, lane: Lane, ttft_seconds: float) -> None:
        """A request got its first token, so long after it asked."""
        self._first_tokens[lane].note(now, ttft_seconds)
        self.last_ttft_seconds[lane] = ttft_seconds

    def refused(self, reason: Reason) -> None:
        """A request was turned away."""
        self.refusals[reason] += 1

    def worst_ttft_seconds(self, now: float, lane: Lane) -> list[float]:
        """The longest time to first token of each bucket, oldest first; 0 where there was none."""
        return self._first_tokens[lane].values(now)
