"""What a prompt is to a radix cache: something whose leading tokens can be compared with another's."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from itertools import accumulate
from typing import Protocol, Self, runtime_checkable


class Prompt(Protocol):
    """A sequence of tokens. Prompts of one engine are all of one kind."""

    @property
    def tokens(self) -> int:
        """How many there are."""
        ...

    def unit(self, at: int) -> Hashable:
        """Identifies the token at position `at`, given that all before it agree."""
        ...

    def agreement(self, other: Self, start: int, stop: int) -> int:
        """The first position in [start, stop) where they differ, else `stop`; before `start` they agree."""
        ...

    def followed_by(self, key: Hashable, tokens: int) -> Self:
        """This prompt and `tokens` generated tokens, which `key` identifies."""
        ...


class SpanPrompt:
    """A prompt known only by the keys of its pieces: `(key, tokens)` in order.

    Two prompts share a piece when its key is the same and all before it is shared; of pieces with the
    same key and different lengths, the shorter is a prefix of the longer.
    """

    __slots__ = ("_ends", "_keys", "tokens")

    def __init__(self, spans: Iterable[tuple[Hashable, int]]) -> None:
        kept = [(key, tokens) for key, tokens in spans if tokens > 0]
        self._keys = [key for key, _ in kept]
        self._ends = list(accumulate(tokens for _, tokens in kept))
        self.tokens = self._ends[-1] if kept else 0

    def unit(self, at: int) -> Hashable:
        index = bisect_right(self._ends, at)
        return self._keys[index], at - (self._ends[index - 1] if index else 0)

    def agreement(self, other: "SpanPrompt", start: int, stop: int) -> int:
        mine, theirs = bisect_right(self._ends, start), bisect_right(other._ends, start)
        at = start
        while at < stop:
            if self.unit(at) != other.unit(at):
                return at
            at = min(self._ends[mine], other._ends[theirs])
            mine += at == self._ends[mine]
            theirs += at == other._ends[theirs]
        return stop

    def followed_by(self, key: Hashable, tokens: int) -> "SpanPrompt":
        return SpanPrompt([*self.spans(), (key, tokens)])

    def first(self, tokens: int) -> "SpanPrompt":
        """Its first `tokens`."""
        kept, left = [], tokens
        for key, size in self.spans():
            kept.append((key, min(size, left)))
            left -= min(size, left)
        return SpanPrompt(kept)

    def spans(self) -> list[tuple[Hashable, int]]:
        """The pieces, as given."""
        starts = [0, *self._ends]
        return [
            (key, end - start) for key, start, end in zip(self._keys, starts[:-1], self._ends, strict=True)
        ]


_BYTES = 4  # a token id


@runtime_checkable
class Continuation(Hashable, Protocol):
    """Generated ids, as many as are asked for."""

    def packed_ids(self, count: int) -> bytes:
        """The first `count`, four bytes each."""
        ...


class TokenPrompt:
    """A prompt of real token ids, packed as four bytes each. What goes on after it is a `Continuation`."""

    __slots__ = ("_ids", "tokens")

    def __init__(self, packed_ids: bytes) -> None:
        self._ids = packed_ids
        self.tokens = len(packed_ids) // _BYTES

    def unit(self, at: int) -> Hashable:
        return self._ids[at * _BYTES : at * _BYTES + _BYTES]

    def agreement(self, other: "TokenPrompt", start: int, stop: int) -> int:
        if self._slice(start, stop) == other._slice(start, stop):
            return stop
        low, high = start, stop  # they agree before `low` and differ before `high`
        while high - low > 1:
            middle = (low + high) // 2
            if self._slice(low, middle) == other._slice(low, middle):
                low = middle
            else:
                high = middle
        return low

    def followed_by(self, key: Hashable, tokens: int) -> "TokenPrompt":
        assert isinstance(key, Continuation)
        return TokenPrompt(self._ids + key.packed_ids(tokens))

    def _slice(self, start: int, stop: int) -> bytes:
        return self._ids[start * _BYTES : stop * _BYTES]
