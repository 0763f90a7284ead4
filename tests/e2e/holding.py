"""Answers that a test lets go when it wants, and prompts of a known size."""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.fakes import DONE, Received, Wire, chat_body, chat_event

COMPLETIONS = "/v1/completions"
_NEXT = count()


@dataclass
class Held:
    """Answers every request, once let go: a stream with its first token at once where `first`."""

    first: bool = True
    go: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0

    async def __call__(self, request: Received, wire: Wire) -> None:
        self.running += 1
        try:
            if request.json().get("stream"):
                await self._stream(wire)
            else:
                await self.go.wait()
                await wire.json(chat_body())
        finally:
            self.running -= 1

    async def _stream(self, wire: Wire) -> None:
        if not self.first:
            await self.go.wait()
        await wire.begin()
        await wire.chunk(chat_event("", role="assistant"))
        await self.go.wait()
        for chunk in (chat_event(" a"), chat_event(finish="stop"), DONE):
            await wire.chunk(chunk)
        await wire.end()


def ids(tokens: int, **fields: Any) -> dict[str, Any]:
    """A completion request whose prompt is exactly so many tokens, and like no other."""
    return {"model": "tiny", "prompt": [next(_NEXT) % 4096] * tokens, "max_tokens": 100, **fields}
