"""One pass over a prompt: counts its pieces and chains their digests.

The key of a place in a prompt is a digest of everything before it. A segment closes as soon as it
holds enough tokens, always at the same places for the same beginning.
"""

from array import array
from hashlib import blake2b
from typing import NamedTuple

from proxy.tokens.counter import Counter, utf8, windows

SEGMENT_TOKENS = 512
# Every 256 segments the size doubles: 1,024 of them span two million tokens.
_SEGMENTS_PER_SIZE = 256
MOST_SEGMENTS = 1_024
_SAMPLE_CHARS = 256
_ID_WINDOW = 2_048


class Mark(NamedTuple):
    """A place in a prompt: the key of all before it, and the tokens before it (uncalibrated)."""

    key: bytes
    tokens: int


class Chain:
    """Counts what is added to it, in order.

    `root` keeps apart what the engine keeps apart. `sampled`: texts that are not remembered are
    estimated from a part of them. Every `sample_every` characters a few bytes are kept in `sample`, by which
    the kind of text is told.
    """

    def __init__(self, counter: Counter, root: bytes, *, sampled: bool, sample_every: int) -> None:
        self.tokens = 0
        self.segments: list[Mark] = []
        self.sample: list[bytes] = []
        self._counter = counter
        self._hash = blake2b(root, digest_size=16)
        self._closed_tokens = 0
        self._sampled = sampled
        self._sample_every = sample_every
        self._until_sample = 0

    def key(self) -> bytes:
        """Of all that was added so far."""
        return self._hash.copy().digest()

    def label(self, label: str, tokens: int = 0) -> None:
        """Something that is no text but tells prompts apart, and costs `tokens`."""
        self._hash.update(label.encode("utf-8", "replace") + b"\0")
        self.tokens += tokens

    def text(self, text: str) -> None:
        """A text; long ones in windows, each of which may end a segment."""
        pieces = windows(text, self._counter.most_chars)
        if pieces is None:
            self._window(text)
            return
        for piece in pieces:
            self._window(piece)
            self.close()

    def _window(self, text: str) -> None:
        data = utf8(text)
        tokens, key = self._counter.window(text, data, sampled=self._sampled)
        self.tokens += tokens
        self._hash.update(b"%d:" % len(data) + data if key is None else key)
        self._until_sample -= len(text)
        if self._until_sample < 0:
            self._until_sample = self._sample_every
            self.sample.append(data[:_SAMPLE_CHARS])

    def special(self, token_id: int) -> None:
        """One token that stands for itself."""
        self._hash.update(b"%d;" % token_id)
        self.tokens += 1

    def digest(self, digest: bytes, tokens: int) -> None:
        """Something of which only a digest is known, such as an image."""
        self._hash.update(digest)
        self.tokens += tokens

    def ids(self, ids: list[int]) -> None:
        """Token ids, each of which is one token."""
        for start in range(0, len(ids), _ID_WINDOW):
            piece = ids[start : start + _ID_WINDOW]
            self.tokens += len(piece)
            self._hash.update(array("q", piece))
            self.close()

    def close(self) -> None:
        """Here a segment may end, if it holds enough."""
        count = len(self.segments)
        least = SEGMENT_TOKENS << count // _SEGMENTS_PER_SIZE
        if self.tokens - self._closed_tokens >= least and count < MOST_SEGMENTS:
            self.segments.append(Mark(self.key(), self.tokens))
            self._closed_tokens = self.tokens
