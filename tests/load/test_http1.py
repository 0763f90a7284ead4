import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.load.http1 import BadAnswer, Exchange, Headers, encode_request, get

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Heard:
    def __init__(self) -> None:
        self.sent = 0
        self.status = 0
        self.headers: Headers = {}
        self.body = b""

    def on_sent(self) -> None:
        self.sent += 1

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def on_body(self, data: bytes) -> None:
        self.body += data


@asynccontextmanager
async def answering(answer: bytes, *, bytes_at_once: int = 65_536) -> AsyncIterator[str]:
    """A server that reads a request's head and sends `answer` in pieces, then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(answer), bytes_at_once):
            writer.write(answer[at : at + bytes_at_once])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def hear(url: str) -> Heard:
    heard = Heard()
    exchange = Exchange(encode_request("GET", f"{url}/x?a=1"), heard)
    await exchange.connect(url)
    try:
        await asyncio.wait_for(exchange.ended, 5)
    finally:
        exchange.leave()
    return heard


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Seen: yes\r\n\r\n"
    b"5\r\nhello\r\n1a;note=1\r\n, chunks of several sizes.\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("bytes_at_once", [1, 2, 3, 7, 1000])
async def test_chunks_are_put_together_however_the_packets_cut_them(bytes_at_once: int) -> None:
    async with answering(CHUNKED, bytes_at_once=bytes_at_once) as url:
        heard = await hear(url)
    assert heard.body == b"hello, chunks of several sizes."
    assert (heard.status, heard.headers["x-seen"], heard.sent) == (200, "yes", 1)


async def test_a_body_of_known_length_ends_there() -> None:
    async with answering(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone") as url:
        assert await get(f"{url}/y") == (404, b"none")


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nall of it") as url:
        assert await get(f"{url}/y") == (200, b"all of it")


async def test_an_empty_body_is_complete_at_once() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as url:
        assert await get(f"{url}/y") == (200, b"")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nfour",
        CHUNKED[:-8],
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_answer_cut_short_is_a_bad_answer(answer: bytes) -> None:
    async with answering(answer) as url:
        with pytest.raises(BadAnswer):
            await hear(url)


async def test_a_client_that_leaves_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()  # until the peer is gone
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        exchange = Exchange(encode_request("POST", url, b"{}"), Heard())
        await exchange.connect(url)
        exchange.leave()
        await asyncio.wait_for(gone.wait(), 5)
