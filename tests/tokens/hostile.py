"""Bodies of 10 MB made to hurt, by what they are full of."""

import random
import string
from collections.abc import Callable

import orjson

SIZE = 10_000_000


def chat(text: str) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": text}]})


def _random(letters: str, count: int) -> str:
    return "".join(random.Random(1).choices(letters, k=count))


def _messages() -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": "Hello there. " * 6}] * 100_000})


def _unicode() -> bytes:
    return chat("".join(map(chr, random.Random(1).choices(range(0x20, 0xD7FF), k=SIZE // 3))))


def _surrogates() -> bytes:
    return b'{"messages":[{"role":"user","content":"' + rb"\ud800" * (SIZE // 6) + b'"}]}'


BODIES: dict[str, Callable[[], bytes]] = {
    "one character": lambda: chat("a" * SIZE),
    "spaces": lambda: chat(" " * SIZE),
    "newlines": lambda: chat("\n" * (SIZE // 2)),
    "digits": lambda: chat(_random(string.digits, SIZE)),
    "base64": lambda: chat(_random(string.ascii_letters + string.digits + "+/", SIZE)),
    "emoji": lambda: chat("😀" * (SIZE // 4)),
    "random Unicode": _unicode,
    "lone surrogates": _surrogates,
    "messages": _messages,
    "nesting": lambda: b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "objects": lambda: b'{"messages":[' + b"{}," * (SIZE // 3) + b"{}]}",
    "ids": lambda: b'{"input_ids":[' + b"150000," * (SIZE // 7) + b'1],"messages":[{"role":"user"}]}',
}
REFUSED = ("lone surrogates", "nesting", "objects")
