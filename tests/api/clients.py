"""The receiving side of ASGI, for tests."""

import asyncio
from collections import deque

from proxy.api.asgi import Message


class Client:
    """The receiving side of ASGI: says what it is given, then nothing until it leaves."""

    def __init__(self, *messages: Message) -> None:
        self._messages = deque(messages)
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.popleft()
        await self._gone.wait()
        return {"type": "http.disconnect"}


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}
