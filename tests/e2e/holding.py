"""Answers that a test lets go when it wants, and prompts of a known size."""

import asyncio
from itertools import count
from typing import Any

from tests.fakes import DONE, FakeServer, Received, Wire, chat_body, chat_event

COMPLETIONS = "/v1/completions"
_NEXT = count()


class Held:
    """Answers every request once let go, or when `fake` is told to abort it; counts what runs.

    A stream has its first token at once, or (`silent`) only then. `text` is streamed meanwhile.
    """

    def __init__(self, fake: FakeServer | None = None, *, silent: bool = False, text: bytes = b"") -> None:
        self.go = asyncio.Event()
        self.running = 0
        self._fake = fake
        self._silent = silent
        self._text = text

    async def __call__(self, request: Received, wire: Wire) -> None:
        self.running += 1
        try:
            if request.json().get("stream"):
                await self._stream(request, wire)
            else:
                finish = await self._let_go(request)
                await wire.json(chat_body(finish=finish))
        finally:
            self.running -= 1

    async def _stream(self, request: Received, wire: Wire) -> None:
        if self._silent:
            await self._let_go(request)
        await wire.begin()
        await wire.chunk(chat_event("", role="assistant"))
        while self._text and not (self.go.is_set() or self._aborted(request)):
            await wire.chunk(self._text)
        finish = await self._let_go(request)
        for chunk in (chat_event(" a"), chat_event(finish=finish), DONE):
            await wire.chunk(chunk)
        await wire.end()

    async def _let_go(self, request: Received) -> str:
        """Waits; the finish reason."""
        while not self.go.is_set():
            if self._aborted(request):
                return "abort"
            await asyncio.sleep(0.005)
        return "stop"

    def _aborted(self, request: Received) -> bool:
        aborted = self._fake.aborted if self._fake else {}
        return any(request.rid.startswith(rid) for rid, done in aborted.items() if done.is_set())


def ids(tokens: int, **fields: Any) -> dict[str, Any]:
    """A completion request whose prompt is exactly so many tokens, and like no other."""
    return {"model": "tiny", "prompt": [next(_NEXT) % 4096] * tokens, "max_tokens": 100, **fields}
