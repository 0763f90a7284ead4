"""Bodies in any framing, and connections in any state."""

import asyncio

import pytest

from tests.fakes import FakeServer, chat_stream, short_stream
from tests.proxies import Running
from tests.raw_http import Connection, chat, request
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


# --- framing and connections ----------------------------------------------------------------------


async def test_a_chunked_request_is_a_request(server: FakeServer, proxy: Running) -> None:
    body = request(chat()).partition(b"\r\n\r\n")[2]
    async with await Connection.open(proxy.port) as connection:
        await connection.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for start in range(0, len(body), 7):
            piece = body[start : start + 7]
            await connection.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        await connection.send(b"0\r\nx-trailer: 1\r\n\r\n")
        assert (await connection.reply()).status == 200
    sent = server.posts()[0]
    assert sent.body.startswith(body[:-1])
    assert "x-trailer" not in sent.headers


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"3\r\nabcd\r\n", b"3\nabc\n0\n\n"],
)
async def test_bad_chunks_are_refused(server: FakeServer, proxy: Running, chunks: bytes) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(CHUNKED + chunks)
        assert (await connection.reply()).status == 400
        assert await connection.closed()
    assert server.posts() == []


async def test_who_expects_100_continue_gets_it_or_the_refusal(proxy: Running) -> None:
    whole = request(chat(), headers=[("expect", "100-continue")])
    head, _, body = whole.partition(b"\r\n\r\n")
    async with await Connection.open(proxy.port) as connection:
        await connection.send(head + b"\r\n\r\n")
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await connection.send(body)
        assert (await connection.reply()).status == 200
    async with await Connection.open(proxy.port) as connection:
        large = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n"
        await connection.send(large + b"expect: 100-continue\r\n\r\n")
        first = await connection.reader.readuntil(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 413 ")


async def test_a_connection_serves_one_request_after_the_other(server: FakeServer, proxy: Running) -> None:
    server.answer = short_stream
    async with await Connection.open(proxy.port) as connection:
        for number in range(20):
            if number % 3 == 2:
                await connection.send(request(b"nonsense"))
                assert (await connection.reply()).status == 400
            else:
                await connection.send(request(chat(stream=True)))
                assert (await connection.reply()).body == b"".join(chat_stream(2))
    assert len({r.connection for r in server.posts()}) <= 3  # of those that polls use


async def test_pipelined_requests_are_answered_in_order(server: FakeServer, proxy: Running) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(
            b"".join(request(chat(), headers=[("x-request-id", f"p{n}")]) for n in range(10))
        )
        names = [(await connection.reply()).header("x-request-id") for _ in range(10)]
    assert names == [f"p{n}" for n in range(10)]
    assert len(server.posts()) == 10


async def test_who_pipelines_and_leaves_leaves_nothing_behind(server: FakeServer, proxy: Running) -> None:
    server.answer = short_stream
    for reset in (False, True):
        connection = await Connection.open(proxy.port)
        await connection.send(request(chat(stream=True)) * 5)
        await connection.reader.read(10)
        connection.leave(reset=reset)
    await proxy.settled()


async def test_http_1_0_is_answered_and_closed(proxy: Running) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(request(chat()).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        reply = await connection.reply()
        assert reply.status == 200
        assert reply.header("connection") == "close"
        assert await connection.closed()


@pytest.mark.parametrize("wanted", ["websocket", "h2c"])
async def test_an_upgrade_is_not_offered_and_the_request_is_served(proxy: Running, wanted: str) -> None:
    upgrade = [("connection", "Upgrade"), ("upgrade", wanted)]
    reply = await proxy.get("/livez", headers=upgrade)
    assert reply.status == 200
    assert (await proxy.ask(chat(), headers=upgrade)).status == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5, 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n: no name\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x00" * 1000,
    ],
)
async def test_what_is_not_http_is_shown_the_door(proxy: Running, garbage: bytes) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(garbage)
        assert await connection.closed(3.0)


async def test_trailers_are_no_way_around_the_limits(server: FakeServer, proxy: Running) -> None:
    body = request(chat()).partition(b"\r\n\r\n")[2]

    async def send_trailers(connection: Connection) -> None:
        await connection.send(CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(body), body))
        for number in range(2000):
            await connection.send(b"x-t%d: " % number + b"x" * 4000 + b"\r\n")
            await asyncio.sleep(0)

    async with await Connection.open(proxy.port) as connection:
        with pytest.raises(ConnectionError):
            await send_trailers(connection)
    assert server.posts() == []


async def test_bytes_that_begin_no_request_do_not_keep_an_idle_connection_open(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(request(chat()))
        await connection.reply()
        (protocol,) = proxy.connections()
        monkeypatch.setattr(protocol, "timeout_keep_alive", 0.1)
        await connection.send(b"\r\n")
        assert await connection.closed(2.0)
    await eventually(lambda: not proxy.connections())
