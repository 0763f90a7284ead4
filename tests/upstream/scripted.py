"""A server that says just the bytes a test tells it to, one script for each connection."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from proxy.upstream.transport import Transport

OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"


class Peer:
    """The server's end of one connection. `number` counts them from 1."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def request(self) -> bytes:
        """The next request, head and body; b"" at the end of the connection."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                return head + await self.reader.readexactly(int(value))
        return head

    async def say(self, data: bytes, step: int = 0) -> None:
        """Writes it, in pieces of `step` bytes that arrive apart where `step` is given."""
        for start in range(0, len(data), step or max(len(data), 1)):
            self.writer.write(data[start : start + step] if step else data)
            await self.writer.drain()
            if step:
                await asyncio.sleep(0)

    async def gone(self) -> None:
        """Waits until the other end has closed."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


def always(answer: bytes, step: int = 0) -> Script:
    """Answers every request with these bytes, for as long as the connection lasts."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.say(answer, step)

    return script


def once(answer: bytes, step: int = 0) -> Script:
    """Answers one request with these bytes, then hangs up."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(answer, step)

    return script


class Scripted:
    """Where a test's server listens, and what has been seen there."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.open = 0

    def request(self, method: str = "GET", content: bytes = b"", **extensions: Any) -> httpx.Request:
        """A request to this server. Reading has no time limit unless a test sets one."""
        timeout = {"connect": 2.0, "read": None, "write": 2.0, "pool": None}
        url = f"http://127.0.0.1:{self.port}/path"
        body = content if method == "POST" else None
        return httpx.Request(method, url, content=body, extensions={"timeout": timeout, **extensions})


@contextlib.asynccontextmanager
async def serving(script: Script, **options: Any) -> AsyncIterator[Scripted]:
    """A server that runs `script` on every connection."""
    server_state = Scripted()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_state.connections += 1
        server_state.open += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Peer(reader, writer, server_state.connections))
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            server_state.open -= 1
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, **options)
    server_state.port = server.sockets[0].getsockname()[1]
    try:
        yield server_state
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@contextlib.asynccontextmanager
async def transport_to(
    script: Script, *, keepalive_seconds: float = 60.0, **options: Any
) -> AsyncIterator[tuple[Scripted, Transport]]:
    """A scripted server and a transport to reach it with."""
    async with (
        serving(script, **options) as server,
        Transport(keepalive_seconds=keepalive_seconds) as transport,
    ):
        yield server, transport


async def body_of(response: httpx.Response) -> bytes:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return b"".join([chunk async for chunk in response.stream])


async def fetch(transport: Transport, request: httpx.Request) -> bytes:
    """The whole body of the answer."""
    return await body_of(await transport.handle_async_request(request))


async def until_broken(response: httpx.Response) -> tuple[bytes, httpx.TransportError]:
    """What came of the body before it broke, and how it did."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    got = b""
    try:
        async for chunk in response.stream:
            got += chunk
    except httpx.TransportError as error:
        return got, error
    raise AssertionError("it did not break")
