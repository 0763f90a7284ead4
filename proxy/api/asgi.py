"""The few ASGI moves the hot path needs: read a bounded body, answer, notice that the client left."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from proxy.api.answers import Answer
from proxy.api.room import Share

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_SECONDS = 60.0  # silence while a body is being sent; a slower client is cut off


class BodyTooLarge(Exception):
    """The body is over `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class ClientGone(Exception):
    """The client closed its connection."""


async def read_body(scope: Scope, receive: Receive, limit_bytes: int, share: Share) -> bytes:
    """The whole body, which `share` counts. Raises BodyTooLarge (also by its announced length),
    NoRoom, ClientGone, TimeoutError."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
    pieces: list[bytes] = []
    size = 0
    while True:
        async with asyncio.timeout(BODY_SECONDS):
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        share.take(len(piece))
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def answer(send: Send, reply: Answer, request_id: str | None = None) -> None:
    """Send one whole JSON answer."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(reply.body)).encode()),
        *reply.headers,
    ]
    if request_id is not None:
        headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


class Watch:
    """Cancels the running request handler when its client leaves.

    Used as `async with Watch(receive) as watch:` around everything that waits. Inside, a
    disconnect surfaces as CancelledError; leaving the block turns it into ClientGone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._handler: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.gone = False

    async def __aenter__(self) -> "Watch":
        self._handler = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._wait())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._watcher is not None
        assert self._handler is not None
        self._watcher.cancel()
        handler = self._handler
        self._watcher = self._handler = None  # tasks know us: nothing waits for a collection
        # a cancellation from elsewhere, which came as well, stays one
        if self.gone and handler.uncancel() <= 0:
            raise ClientGone from None

    async def _wait(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self.gone = True
        assert self._handler is not None
        self._handler.cancel()
