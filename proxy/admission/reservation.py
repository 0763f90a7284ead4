"""How many output tokens to set aside for a request before anyone knows how long it gets.

reserve = min(max_tokens, q-quantile of the outputs this model and tenant produced lately, cap),
never below what the request itself guarantees (`min_tokens`, or all of it with `ignore_eos`).
"""

from bisect import bisect_left, insort
from collections import deque

from proxy.admission.types import Request

COLD_RESERVE_TOKENS = 4096  # the engine's own clip, until outputs were seen
WINDOW = 256  # outputs remembered per model and tenant: a few minutes of traffic
MIN_SAMPLES = 8  # fewer say nothing about a quantile
GROWTH_STEP_TOKENS = 256  # a stream that outgrows its reserve gets this much more
GROWTH_AHEAD_TOKENS = 64  # and gets it this early, since progress is seen four times a second
MAX_HISTORIES = 512  # (model, tenant) pairs; the least recently used is forgotten


class _Outputs:
    """The last WINDOW output lengths, kept sorted for the quantile."""

    __slots__ = ("_order", "_sorted")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, tokens: int) -> None:
        if len(self._order) == WINDOW:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._order.append(tokens)
        insort(self._sorted, tokens)

    def quantile(self, q: float) -> int | None:
        if len(self._sorted) < MIN_SAMPLES:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(q * len(self._sorted)))]


class Reservation:
    """Learns output lengths and answers how much to reserve."""

    def __init__(self, quantile: float, cap_tokens: int) -> None:
        self.adopt(quantile, cap_tokens)
        self._outputs: dict[tuple[str, str], _Outputs] = {}

    def adopt(self, quantile: float, cap_tokens: int) -> None:
        """Reserve by these from now on; what was learnt stays."""
        self._quantile = quantile
        self._cap_tokens = cap_tokens

    def reserve_tokens(self, request: Request) -> int:
        """Output tokens to set aside for one sequence of `request`."""
        ceiling = request.max_tokens
        if request.ignore_eos and ceiling is not None:
            return ceiling
        outputs = self._outputs.get((request.model, request.tenant))
        seen = outputs.quantile(self._quantile) if outputs else None
        guess = min(COLD_RESERVE_TOKENS if seen is None else seen, self._cap_tokens)
        guess = max(guess, request.min_tokens, 1)
        return guess if ceiling is None else min(guess, ceiling)

    def grown_tokens(self, request: Request, generated_tokens: int, reserved_tokens: int) -> int:
        """The reserve of a running sequence that has produced `generated_tokens` so far."""
        ceiling = request.max_tokens
        if generated_tokens + GROWTH_AHEAD_TOKENS < reserved_tokens:
            return reserved_tokens
        wanted = max(reserved_tokens, generated_tokens + GROWTH_STEP_TOKENS)
        if ceiling is not None:
            wanted = min(wanted, ceiling)
        return max(wanted, generated_tokens)

    def learn(self, request: Request, completion_tokens: int) -> None:
        """A request ended by itself after `completion_tokens` over all its sequences."""
        key = (request.model, request.tenant)
        outputs = self._outputs.pop(key, None) or _Outputs()
        self._outputs[key] = outputs  # newest last
        if len(self._outputs) > MAX_HISTORIES:
            del self._outputs[next(iter(self._outputs))]
        outputs.add(completion_tokens // max(1, request.sequences))
