"""Made-up traffic: interleaved conversations of several kinds, as a model's server sees them."""

import json
import random
from collections.abc import Iterator
from typing import Any

import orjson

from tests.tokens.texts import CHINESE, JAPANESE, SENTENCES, english, joined, numbers, records, source_code

_LANGUAGES = ("German", "French", "Russian", "Vietnamese")
_GAPS = (" ", " ", " ", ". ", "\n")


class Conversation:
    """One session: an agent with tools, a chat in some language, or questions over numbers.

    Each call of `turn` gives the next request body, which repeats all earlier turns.
    """

    def __init__(self, rnd: random.Random) -> None:
        self._rnd = rnd
        self._kind = rnd.choices(("agent", "chat", "numbers"), weights=(52, 38, 10))[0]
        self._language = rnd.choice(("English", "English", "Chinese", "Japanese", *_LANGUAGES))
        self._tools = (
            [_tool(rnd, index) for index in range(rnd.randint(5, 20))] if self._kind == "agent" else []
        )
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": _prose(rnd, "English", 1_500)}]
        if self._kind == "agent":
            self._messages[0]["content"] += _code(rnd, rnd.randint(2_000, 20_000))
        self._turns_left = rnd.randint(1, 12)

    @property
    def ended(self) -> bool:
        """Whether it has no more turns."""
        return self._turns_left == 0

    def turn(self) -> bytes:
        """The body of the next request."""
        self._turns_left -= 1
        if self._messages[-1]["role"] != "system":
            self._answer()
        if self._kind != "agent" or self._messages[-1]["role"] != "tool":
            self._messages.append({"role": "user", "content": self._question()})
        body: dict[str, Any] = {"model": "m", "messages": self._messages}
        return orjson.dumps(body | ({"tools": self._tools} if self._tools else {}))

    def _question(self) -> str:
        if self._kind == "numbers":
            return numbers(self._rnd, self._rnd.randint(5_000, 60_000)) + "\nWhat is the mean?"
        language = "English" if self._kind == "agent" else self._language
        return _prose(self._rnd, language, self._rnd.randint(50, 3_000))

    def _answer(self) -> None:
        rnd = self._rnd
        if self._kind != "agent" or rnd.random() < 0.2:
            language = "English" if self._kind != "chat" else self._language
            self._messages.append(
                {"role": "assistant", "content": _prose(rnd, language, rnd.randint(200, 3_000))}
            )
            return
        arguments = json.dumps(
            {"path": "a/b.py", "lines": [1, rnd.randint(2, 900)], "why": _prose(rnd, "English", 80)}
        )
        call = {
            "id": f"c{len(self._messages)}",
            "type": "function",
            "function": {"name": "tool_1", "arguments": arguments},
        }
        self._messages.append(
            {"role": "assistant", "content": _prose(rnd, "English", 100), "tool_calls": [call]}
        )
        if rnd.random() < 0.5:
            result = _code(rnd, rnd.randint(500, 12_000))
        else:
            result = json.dumps(records(rnd, rnd.randint(5, 120)))
        self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def requests(count: int, seed: int, at_once: int = 40) -> Iterator[bytes]:
    """`count` bodies of interleaved conversations."""
    rnd = random.Random(seed)
    open_ones = [Conversation(rnd) for _ in range(at_once)]
    for _ in range(count):
        place = rnd.randrange(at_once)
        if open_ones[place].ended:
            open_ones[place] = Conversation(rnd)
        yield open_ones[place].turn()


def _prose(rnd: random.Random, language: str, chars: int) -> str:
    if language == "English":
        text = english()
        start = rnd.randrange(len(text) - chars)
        return text[start : start + chars]
    if language in ("Chinese", "Japanese"):
        return "".join(rnd.choices(CHINESE if language == "Chinese" else JAPANESE, k=chars // 2))
    return joined(rnd, SENTENCES[language].split(), chars, _GAPS)


def _code(rnd: random.Random, chars: int) -> str:
    text = source_code()
    start = rnd.randrange(len(text) - chars)
    return text[start : start + chars]


def _tool(rnd: random.Random, index: int) -> dict[str, Any]:
    properties = {
        name: {
            "type": rnd.choice(("string", "integer", "boolean")),
            "description": _prose(rnd, "English", 60),
        }
        for name in ("path", "lines", "query", "limit")[: rnd.randint(1, 4)]
    }
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    function = {"name": f"tool_{index}", "description": _prose(rnd, "English", 200), "parameters": parameters}
    return {"type": "function", "function": function}
