"""A server that takes anything and never answers 5xx: a 500 behind it is the proxy's own."""

import asyncio
import json
from typing import Any, Self

from tests.fakes import DONE, FakeServer, Received, Wire, chat_body, chat_stream, event

MESSAGE_STREAM = (
    event(
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 0}}},
        "message_start",
    ),
    event({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta"),
    event({"type": "message_stop"}, "message_stop"),
)


class Tolerant(FakeServer):
    """Answers as each API does where that is to be seen, and remembers no request."""

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _respond(self, request: Received, wire: Wire) -> None:
        self.requests.clear()
        self.aborted.clear()
        await super()._respond(request, wire)


async def answer(request: Received, wire: Wire) -> None:
    document = _document(request.body)
    if document.get("stream") is not True:
        await wire.json(chat_body())
        return
    await wire.begin()
    for chunk in MESSAGE_STREAM if "messages" in request.target else (*chat_stream(3)[:-1], DONE):
        await wire.chunk(chunk)
    await wire.end()


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
