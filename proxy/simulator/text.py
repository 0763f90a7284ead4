"""The simulator's tokenizer: four bytes are a token, whatever they spell.

Cheap, deterministic, and close to a real one on the text made here: words of three letters and a space,
each of which is one token to o200k_base too. What the model says reads back as the very ids it was
generated as, so the next turn of a conversation finds its prefix in the cache.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

VOCABULARY = 131_072
_SPECIAL = 16  # ids below this are markers, never text
_BEGIN, _END, _ANSWER = 1, 2, 3
_ROLES = {"system": 4, "user": 5, "assistant": 6, "tool": 7, "developer": 8}
_OTHER_ROLE = 9
_BYTES = 4

_WORDS = (
    "the and for are but not you all any can her was one our out day get has him his how man new now old "
    "see two way who boy did its let put say she too use big end far few got run set six top try ask own "
    "air red sun sea map law art job oil car cup ten hot low sir yet ago due led won met lay bad fit"
)
WORDS = tuple(_WORDS.split())


def tokenize(text: str) -> array[int]:
    """The ids of `text`, all below `VOCABULARY`."""
    data = text.encode("utf-8", "surrogatepass")
    packed = array("I", data + b" " * (-len(data) % _BYTES))
    room = VOCABULARY - _SPECIAL
    return array("I", [group % room + _SPECIAL for group in packed])


def tokenize_chat(messages: Iterable[Mapping[str, Any]], tools: object = None) -> array[int]:
    """The ids of a conversation, up to where the answer begins."""
    ids = array("I", [_BEGIN])
    if tools:
        ids.append(_ROLES["tool"])
        ids += tokenize(json.dumps(tools))
        ids.append(_END)
    for message in messages:
        ids.append(_ROLES.get(str(message.get("role")), _OTHER_ROLE))
        ids += tokenize(_content(message))
        ids.append(_END)
    ids.append(_ROLES["assistant"])
    return ids


def words(seed: str, count: int) -> str:
    """Text of exactly `count` tokens."""
    return "".join(f"{word} " for word in random.Random(seed).choices(WORDS, k=count))


class Speech:
    """What the model says, token by token, for as long as it is asked to go on."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._words: list[str] = []

    def text(self, start: int, stop: int) -> str:
        """Tokens [start, stop)."""
        return "".join(self.tokens(start, stop))

    def tokens(self, start: int, stop: int) -> list[str]:
        """The same, one by one."""
        missing = stop - len(self._words)
        if missing > 0:
            self._words += [f"{word} " for word in self._rng.choices(WORDS, k=missing)]
        return self._words[start:stop]

    def packed_ids(self, count: int) -> bytes:
        """The ids of the first `count` tokens, as a `TokenPrompt` holds them."""
        return tokenize(self.text(0, count)).tobytes()


def _content(message: Mapping[str, Any]) -> str:
    """All that a message holds, as one text."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        parts = [
            part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else json.dumps(part)
            for part in content
        ]
    if message.get("tool_calls"):
        parts.append(json.dumps(message["tool_calls"]))
    return "".join(parts)
