"""The simulator's tokenizer: four bytes are a token, whatever they spell.

Cheap, deterministic, and close to a real one on the text made here: words of three letters and a space,
each of which is one token to o200k_base too. What the model says reads back as the very ids it was
generated as, so the next turn of a conversation finds its prefix in the cache.
"""

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

WORDS = (
    "the and for are but not you all any can her was one our out day get has him his how man new now old "
    "see two way who boy did its let put say she too use big end far few got run set six top try ask own "
    "air also"
).split()[:-1]


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


def spoken(seed: str, count: int) -> list[str]:
    """What the model says: `count` tokens as text."""
    return [f"{word} " for word in random.Random(seed).choices(WORDS, k=count)]


def _content(message: Mapping[str, Any]) -> str:
    """All that a message holds, as one text."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        parts = [
            part["text"]
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else json.dumps(part)
            for part in content
        ]
    if message.get("tool_calls"):
        parts.append(json.dumps(message["tool_calls"]))
    return "".join(parts)
