"""What joining an answer's head to its body must not change: order, interim answers, ends, back-pressure."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from proxy.api.asgi import Receive, Scope, Send
from proxy.serve import Server, make_server
from tests.raw_http import Connection

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
PIECE = b"x" * 65_536
PIECES = 200  # more than the buffers of any socket here
SOON_SECONDS = 5.0


class Site:
    """An ASGI app with one kind of answer for each path, and the server it runs on."""

    def __init__(self) -> None:
        self.server: Server = make_server(self, "127.0.0.1", 0)
        self.go_on = asyncio.Event()
        self.sent_pieces = 0
        self.errors: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/echo":
                body, more = b"", True
                while more:
                    message = await receive()
                    body, more = body + message["body"], message["more_body"]
                await self._begin(send, len(body))
                await send({"type": "http.response.body", "body": body})
            case "/waits":
                await self._begin(send, 4)
                await self.go_on.wait()
                await send({"type": "http.response.body", "body": b"late"})
            case "/many":
                await self._begin(send, len(PIECE) * PIECES)
                for number in range(PIECES):
                    await send(
                        {"type": "http.response.body", "body": PIECE, "more_body": number + 1 < PIECES}
                    )
                    self.sent_pieces += 1
            case "/lost":  # in the very turn of the loop in which its answer begins
                for protocol in tuple(self.server.server_state.connections):
                    protocol.transport.abort()
                await self._begin(send, 4)
                await self.go_on.wait()
                await send({"type": "http.response.body", "body": b"late"})

    async def _begin(self, send: Send, length: int) -> None:
        headers = [(b"content-length", b"%d" % length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    @property
    def port(self) -> int:
        return self.server.addresses()[0][1]


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Site]:
    site = Site()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: site.errors.append(context))
    serving = asyncio.create_task(site.server.serve())
    while not site.server.started:
        await asyncio.sleep(0)
    try:
        yield site
    finally:
        site.go_on.set()
        site.server.should_exit = True
        await serving
    assert site.errors == []


Work = Callable[[Site, Connection], Awaitable[None]]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def on_sockets(request: pytest.FixtureRequest) -> Callable[[Work], None]:
    """Runs a client's part against a site, on either kind of loop."""

    async def both(work: Work) -> None:
        async with asyncio.timeout(SOON_SECONDS), running() as site:
            client = await Connection.open(site.port, receive_buffer_bytes=16_384)
            await work(site, client)
            client.writer.close()

    def run(work: Work) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(both(work))

    return run


def asked(path: str, *, method: str = "POST", body: bytes = b"", headers: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def test_pipelined_requests_are_answered_in_order(on_sockets: Callable[[Work], None]) -> None:
    async def work(site: Site, client: Connection) -> None:
        bodies = [b"one", b"", b"HTTP/1.1 three", b"four"]
        requests = [asked("/echo", body=body) for body in bodies]
        requests.insert(2, asked("/waits", method="HEAD"))
        site.go_on.set()
        await client.send(b"".join(requests))
        replies = [await client.reply(to_head=number == 2) for number in range(5)]
        assert [reply.body for reply in replies] == [b"one", b"", b"", b"HTTP/1.1 three", b"four"]

    on_sockets(work)


def test_a_head_does_not_wait_for_a_body_that_is_late(on_sockets: Callable[[Work], None]) -> None:
    async def work(site: Site, client: Connection) -> None:
        await client.send(asked("/waits"))
        head = await client.head()
        assert head.status == 200
        site.go_on.set()
        assert await client.reader.readexactly(4) == b"late"

    on_sockets(work)


def test_who_waits_for_100_continue_gets_it_before_the_body(on_sockets: Callable[[Work], None]) -> None:
    async def work(site: Site, client: Connection) -> None:
        request = asked("/echo", body=b"hello", headers="expect: 100-continue\r\n")
        await client.send(request[: -len(b"hello")])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        assert (await client.reply()).body == b"hello"

    on_sockets(work)


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_an_answer_that_closes_the_connection_arrives_whole(
    on_sockets: Callable[[Work], None], method: str
) -> None:
    async def work(site: Site, client: Connection) -> None:
        site.go_on.set()
        await client.send(asked("/waits", method=method, headers="connection: close\r\n"))
        reply = await client.reply(to_head=method == "HEAD")
        assert (reply.status, reply.body) == (200, b"late" if method == "POST" else b"")
        assert await client.reader.read() == b""

    on_sockets(work)


def test_a_head_for_a_lost_connection_is_dropped_in_silence(on_sockets: Callable[[Work], None]) -> None:
    async def work(site: Site, client: Connection) -> None:
        await client.send(asked("/lost"))
        with contextlib.suppress(ConnectionResetError):
            assert await client.reader.read() == b""
        site.go_on.set()
        await asyncio.sleep(0.01)

    on_sockets(work)


def test_bad_bytes_behind_a_request_end_it_without_an_error_in_the_loop(
    on_sockets: Callable[[Work], None],
) -> None:
    async def work(site: Site, client: Connection) -> None:
        await client.send(asked("/waits") + b"\x00\x01 nothing\r\n\r\n")
        assert b"400 Bad Request" in await client.reader.read()
        site.go_on.set()
        await asyncio.sleep(0.01)

    on_sockets(work)


def test_a_client_that_does_not_read_stops_the_answer_and_then_gets_all_of_it(
    on_sockets: Callable[[Work], None],
) -> None:
    async def work(site: Site, client: Connection) -> None:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(asked("/many"))
        seen = -1
        while site.sent_pieces != seen:
            seen = site.sent_pieces
            await asyncio.sleep(0.05)
        assert 0 < seen < PIECES
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        reply = await client.reply()
        assert reply.whole
        assert reply.body == PIECE * PIECES

    on_sockets(work)


def test_a_body_that_nobody_reads_is_not_taken_in(on_sockets: Callable[[Work], None]) -> None:
    async def work(site: Site, client: Connection) -> None:
        client.writer.write(asked("/waits", body=PIECE * PIECES))
        left = -1
        while client.writer.transport.get_write_buffer_size() != left:
            left = client.writer.transport.get_write_buffer_size()
            await asyncio.sleep(0.05)
        assert left > 0
        client.writer.transport.abort()

    on_sockets(work)
