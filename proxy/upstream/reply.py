"""One answer on its way: its head, then its bytes as they come, with a bound on what waits here."""

import asyncio
from collections.abc import Mapping
from typing import Protocol, Self

import httpx

# What may wait for a slow reader before the server is made to wait (one more read may follow it).
LARGEST_WAITING_BYTES = 64 * 1024


class Source(Protocol):
    """The connection an answer comes from."""

    def go_on(self) -> None:
        """The reader has caught up."""

    def cut(self) -> None:
        """Nobody wants the rest."""


class Reply(httpx.AsyncByteStream):
    """Fed by its connection, read by one reader at a time.

    A read that is cancelled loses nothing: the next one goes on where it would have. `status` is
    0 until the head is here. `timeouts` is httpx's dict; its "read" is looked up at every wait.
    """

    __slots__ = ("_chunks", "_deadline", "_ended", "_error", "_loop", "_source", "_timer", "_waiter",
                 "headers", "status", "timeouts", "waiting_bytes")  # fmt: skip

    def __init__(
        self, source: Source, timeouts: Mapping[str, float | None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.timeouts = timeouts
        self.waiting_bytes = 0
        self._source = source
        self._loop = loop
        self._chunks: list[bytes] = []
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0

    # --- for the connection

    def add(self, data: bytes) -> None:
        """More of the body. Whoever waits hears of it with `wake`."""
        self._chunks.append(data)
        self.waiting_bytes += len(data)

    def end(self) -> None:
        """The body is complete."""
        self._ended = True
        self._stop()

    def fail(self, error: Exception) -> None:
        """Nothing more will come; what waits here can still be read."""
        if not self._ended and self._error is None:
            self._error = error
        self._stop()

    def wake(self) -> None:
        """Something has changed."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()

    # --- until the head is here

    async def changed(self, seconds: float | None, late: type[httpx.TimeoutException]) -> None:
        """Waits for the next change. Raises what the connection failed with, or `late`."""
        if self._error is None:
            try:
                async with asyncio.timeout(seconds):
                    await self._wait()
            except TimeoutError:
                raise late("timed out") from None
        if self._error is not None and not self.status:
            raise self._error

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    # --- for the reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """All that has come since the last read. Raises httpx.TransportError."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            if (seconds := self.timeouts.get("read")) is not None:
                self._watch(seconds)
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        chunks, self._chunks = self._chunks, []
        if self.waiting_bytes >= LARGEST_WAITING_BYTES and not self._ended:
            self._source.go_on()
        self.waiting_bytes = 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _watch(self, seconds: float) -> None:
        """One timer for the whole answer: it looks again when the last read would be late."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
            return
        self.fail(httpx.ReadTimeout("timed out"))
        self._source.cut()

    async def aclose(self) -> None:
        """Ends a connection whose answer is not complete; another read fails."""
        if not self._ended and self._error is None:
            self.fail(httpx.ReadError("closed"))
            self._source.cut()
