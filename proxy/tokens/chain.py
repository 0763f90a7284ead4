"""One pass over a prompt: counts its pieces and chains their digests.

The key of a place in a prompt is a digest of everything before it. A segment closes as soon as it
holds enough tokens, always at the same places for the same beginning.
"""

from array import array
from hashlib import blake2b
from typing import NamedTuple

from proxy.tokens.breath import breathe
from proxy.tokens.composition import COMPONENTS, DIGITS, MEDIA, OVERHEAD
from proxy.tokens.counter import Counter, utf8, windows

SEGMENT_TOKENS = 512
# Every 256 segments the size doubles: 1,024 of them span two million tokens.
_SEGMENTS_PER_SIZE = 256
MOST_SEGMENTS = 1_024
_ID_WINDOW = 2_048


class Mark(NamedTuple):
    """A place in a prompt: the key of all before it, and the tokens before it (uncalibrated)."""

    key: bytes
    tokens: int


class Chain:
    """Counts what is added to it, in order.

    `root` keeps apart what the engine keeps apart. `sampled`: texts that are not remembered are
    estimated from a part of them. `composition` is what was counted, by component.
    """

    def __init__(self, counter: Counter, root: bytes, *, sampled: bool) -> None:
        self.tokens = 0
        self.composition = [0.0] * len(COMPONENTS)
        self.segments: list[Mark] = []
        self._counter = counter
        self._hash = blake2b(root, digest_size=16)
        self._closed_tokens = 0
        self._sampled = sampled

    def key(self) -> bytes:
        """Of all that was added so far."""
        return self._hash.copy().digest()

    def label(self, label: str, tokens: int = 0) -> None:
        """Something that is no text but tells prompts apart, and costs `tokens`."""
        self._hash.update(label.encode("utf-8", "replace") + b"\0")
        self._count(OVERHEAD, tokens)

    def text(self, text: str, component: int | None = None) -> None:
        """A text; long ones in windows, each of which may end a segment.

        It counts as `component`, or as the kind of text that it is.
        """
        pieces = windows(text, self._counter.most_chars)
        if pieces is None:
            self._window(text, component)
            return
        for piece in pieces:
            self._window(piece, component)
            self.close()

    def _window(self, text: str, component: int | None) -> None:
        breathe()
        data = utf8(text)
        tokens, kind, key = self._counter.window(text, data, sampled=self._sampled)
        self._hash.update(b"%d:" % len(data) + data if key is None else key)
        self.composition[DIGITS] += kind.digits
        if component is not None:
            self._count(component, tokens)
        elif kind.share == 1:
            self._count(kind.ruling, tokens)
        else:
            self.tokens += tokens
            self.composition[kind.ruling] += tokens * kind.share
            self.composition[0] += tokens * (1 - kind.share)

    def _count(self, component: int, tokens: int) -> None:
        self.tokens += tokens
        self.composition[component] += tokens

    def special(self, token_id: int) -> None:
        """One token that stands for itself."""
        self._hash.update(b"%d;" % token_id)
        self._count(OVERHEAD, 1)

    def medium(self, digest: bytes, tokens: int) -> None:
        """An image or its like, of which only a digest is known."""
        self._hash.update(digest)
        self._count(MEDIA, tokens)

    def ids(self, ids: list[int]) -> None:
        """Token ids, each of which is one token."""
        for start in range(0, len(ids), _ID_WINDOW):
            piece = ids[start : start + _ID_WINDOW]
            self._count(OVERHEAD, len(piece))
            self._hash.update(array("q", piece))
            self.close()

    def close(self) -> None:
        """Here a segment may end, if it holds enough."""
        count = len(self.segments)
        least = SEGMENT_TOKENS << count // _SEGMENTS_PER_SIZE
        if self.tokens - self._closed_tokens >= least and count < MOST_SEGMENTS:
            self.segments.append(Mark(self.key(), self.tokens))
            self._closed_tokens = self.tokens
