"""Added tokens: what stands for one id in a text, whatever is around it."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proxy.tokens.exact.patterns import Unsupported

_STRIDE_CHARS = 262_144


@dataclass(frozen=True, slots=True)
class AddedToken:
    """As tokenizer.json has it. `normalized`: looked for after normalisation, not before."""

    content: str
    id: int
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class AddedTokens:
    """Splits a text at added tokens in the order of `tokenizers`: first those that are looked for in
    the raw text, then, in what lies between and is normalised, the others."""

    def __init__(self, tokens: list[AddedToken], normalize: Callable[[str], str] | None) -> None:
        if any(token.single_word for token in tokens):
            raise Unsupported("added tokens that match single words only")
        self._raw = _Finder([token for token in tokens if not token.normalized], None)
        self._normalized = _Finder([token for token in tokens if token.normalized], normalize)
        self._normalize = normalize

    def pieces(self, text: str) -> Iterator[str | int]:
        """The ids of added tokens, and the normalised texts between them, in order; none is empty."""
        for piece in self._raw.split(text):
            if isinstance(piece, int):
                yield piece
            else:
                yield from self._normalized.split(self._normalize(piece) if self._normalize else piece)


def nfc(text: str) -> str:
    """The only normalisation that byte-level tokenizers use."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


class _Finder:
    def __init__(self, tokens: list[AddedToken], normalize: Callable[[str], str] | None) -> None:
        written = normalize or str
        self._tokens = {written(token.content): token for token in tokens if token.content}
        self._expression = re.compile(_trie(list(self._tokens))) if self._tokens else None
        self._longest = max(map(len, self._tokens), default=0)
        self._strips = any(token.lstrip or token.rstrip for token in tokens)

    def split(self, text: str) -> Iterator[str | int]:
        position = 0
        for match in self._matches(text):
            start, end = match.span()
            if start < position:  # inside what an earlier token stripped
                continue
            token = self._tokens[match[0]]
            if self._strips:
                start, end = _stripped(text, token, start, end, position)
            if start > position:
                yield text[position:start]
            yield token.id
            position = end
        if position < len(text):
            yield text[position:] if position else text

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        """All matches, searched for in strides, between which other threads may run."""
        position = 0
        while self._expression is not None and position < len(text):
            stride_end = position + _STRIDE_CHARS
            for match in self._expression.finditer(text, position, stride_end + self._longest):
                if match.start() >= stride_end:
                    break
                yield match
                position = match.end()
            position = max(position, stride_end)


def _stripped(text: str, token: AddedToken, start: int, end: int, least: int) -> tuple[int, int]:
    while token.lstrip and start > least and text[start - 1].isspace():
        start -= 1
    while token.rstrip and end < len(text) and text[end].isspace():
        end += 1
    return start, end


def _trie(words: list[str]) -> str:
    """An expression that finds the longest of `words` at the first place where any begins."""
    root: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in words:
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branch(root)


def _branch(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    choices = [re.escape(char) + _branch(after) for char, after in node.items() if char]
    if not choices:
        return ""
    joined = choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"
    return f"(?:{joined})?" if "" in node else joined
