"""Tokens of a text: in windows, remembered, and never an exception."""

import logging
from collections.abc import Iterator, Sized
from hashlib import blake2b
from typing import NamedTuple, Protocol

from proxy.tokens.guard import EncoderFailed, guarded
from proxy.tokens.memo import Memo
from proxy.tokens.textclass import Kind, kind_of

logger = logging.getLogger(__name__)

# Small windows keep every stretch of encoding short (about 0.3 ms; tiktoken's panic on long runs of
# spaces starts at 600 KB), and let prompts that differ late share the earlier windows.
WINDOW_CHARS = 8_192
_CUT_CHARS = 2_048  # where in the end of a window a cut that costs nothing is looked for
_CUT_TRIES = 64
EXACT_MOST_CHARS = 262_144  # where a cut must cost nothing a window may grow to this
MEMO_LEAST_CHARS = 128  # below, counting (6 us) is not worth an entry
_SAMPLE_CHARS = 256  # of each window when there is no time to count it
_BYTES_PER_TOKEN = 3.5  # where the encoder fails: between prose (4.4) and JSON (3.0)


class Encoder(Protocol):
    """What a counter needs of a tokenizer; `tiktoken.Encoding` is one."""

    def encode_ordinary(self, text: str) -> Sized:
        """Something as long as `text`, read as plain text, has tokens."""


def windows(text: str, most_chars: int = WINDOW_CHARS) -> Iterator[str] | None:
    """Cuts `text` into windows whose token counts add up to its own; None when it is one itself.

    A cut lies where no token crosses: in letter | space letter, or newline | letter. Where a window
    offers none it grows, to `most_chars` at most, and is then cut hard, which adds 1.5 tokens or
    less. Each cut depends only on the text before it, so that a text that grows keeps its windows.
    """
    return _windows(text, most_chars) if len(text) > WINDOW_CHARS else None


def _windows(text: str, most_chars: int) -> Iterator[str]:
    start, size = 0, len(text)
    while size - start > WINDOW_CHARS:
        low = start + WINDOW_CHARS - _CUT_CHARS
        high = start + WINDOW_CHARS
        cut = _cut(text, low, high)
        while cut < 0 and high - start < most_chars and high < size:
            low, high = high, min(high + WINDOW_CHARS, start + most_chars, size)
            cut = _cut(text, low, high - (high == size))
        if cut < 0:
            cut = high
        yield text[start:cut]
        start = cut
    if start < size:
        yield text[start:]


def _cut(text: str, low: int, high: int) -> int:
    """The last good cut in (low, high), -1 without one; high is less than the length of `text`."""
    position = high
    for _ in range(_CUT_TRIES):
        position = text.rfind(" ", low, position)
        if position < 0:
            break
        if _latin(text[position - 1]) and _latin(text[position + 1]):
            return position
    position = high
    for _ in range(_CUT_TRIES):
        position = text.rfind("\n", low, position)
        if position < 0:
            break
        # After more than one blank some tokenizers leave the last of them for the next piece.
        if _latin(text[position + 1]) and not text[position - 1].isspace():
            return position + 1
    return -1


def _latin(char: str) -> bool:
    return char.isascii() and char.isalpha()


def utf8(text: str) -> bytes:
    """`text` as UTF-8; lone surrogates as they are, so that no text fails."""
    return text.encode("utf-8", "surrogatepass")


class Counted(NamedTuple):
    """Tokens of one window, what kind of text it is, and its digest when it is worth remembering."""

    tokens: int
    kind: Kind
    key: bytes | None


class Counter:
    """Counts with one encoder; remembers the counts of strings by their digest.

    `most_chars` is how far a window may grow, see `windows`. Safe to use from the event loop and the
    counting thread at once.
    """

    def __init__(self, encoder: Encoder | None, *, memo_entries: int, most_chars: int = WINDOW_CHARS) -> None:
        self.encoder = encoder
        self.most_chars = most_chars
        self._memo: Memo[Counted] = Memo(memo_entries)
        self.failures = 0

    @property
    def memo_entries(self) -> int:
        """How many strings' counts are remembered."""
        return len(self._memo)

    def window(self, text: str, data: bytes, *, sampled: bool = False) -> Counted:
        """Counts one window; `data` is `text` as UTF-8.

        With `sampled` what is not remembered is estimated from a part of it.
        """
        if len(text) < MEMO_LEAST_CHARS:
            tokens = self.encode(text, len(data)) if text else 0
            return Counted(tokens, kind_of(data, tokens), None)
        key = blake2b(data, digest_size=16).digest()
        found = self._memo.get(key)
        if found is not None:
            return found
        if sampled and len(text) > 2 * _SAMPLE_CHARS:
            middle = (len(text) - _SAMPLE_CHARS) // 2
            sample = text[middle : middle + _SAMPLE_CHARS]
            tokens = -(-self.encode(sample, len(utf8(sample))) * len(text) // _SAMPLE_CHARS)
            return Counted(tokens, kind_of(data, tokens), key)
        tokens = self.encode(text, len(data))
        found = Counted(tokens, kind_of(data, tokens), key)
        self._memo.put(key, found)
        return found

    def encode(self, text: str, size_bytes: int) -> int:
        """Tokens of `text` by the encoder, by its bytes where that fails or is not loaded yet."""
        if self.encoder is not None:
            try:
                return len(guarded(self.encoder.encode_ordinary, text))
            except EncoderFailed as error:  # which must never refuse a request
                self.failed(error)
        return max(1, round(size_bytes / _BYTES_PER_TOKEN))

    def failed(self, error: EncoderFailed) -> None:
        """Counts a failure of the tokenizer, and logs the first."""
        self.failures += 1
        if self.failures == 1:
            logger.warning("the tokenizer failed on a text (%s): it is counted by its bytes", error)
