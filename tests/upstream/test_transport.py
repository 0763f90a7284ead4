"""The transport on real sockets, under both event loops: answers of every form, every way to fail."""

import asyncio
import contextlib
import socket
from typing import Any

import httpx
import pytest

from proxy.upstream.reply import LARGEST_WAITING_BYTES
from proxy.upstream.transport import Transport
from tests.upstream.scripted import HELLO, OK, Peer, always, body_of, fetch, once, transport_to, until_broken
from tests.waiting import eventually

CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nx-trailer: 1\r\n\r\n"
UNTIL_CLOSE = OK + b"x-a: b\r\n\r\nhello"
GONE = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("answer", [HELLO, CHUNKED, UNTIL_CLOSE], ids=["length", "chunked", "until close"])
async def test_a_body_arrives_whole_however_it_is_framed_and_cut(answer: bytes, step: int) -> None:
    async with transport_to(once(answer, step)) as (server, transport):
        response = await transport.handle_async_request(server.request())
        assert response.status_code == 200
        assert await body_of(response) == b"hello"
        assert "x-trailer" not in response.headers


async def test_the_request_arrives_as_it_was_built() -> None:
    seen: list[bytes] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.say(HELLO)

    async with transport_to(script) as (server, transport):
        request = server.request("POST", b"x" * 200_000)
        request.headers["x-mine"] = "1"
        assert await fetch(transport, request) == b"hello"
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /path HTTP/1.1"
    assert b"Host: 127.0.0.1:%d" % server.port in head
    assert b"x-mine: 1" in head
    assert body == b"x" * 200_000


@pytest.mark.parametrize(
    ("method", "answer", "status"),
    [
        ("HEAD", OK + b"content-length: 5\r\n\r\n", 200),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304),
        ("GET", OK + b"content-length: 0\r\n\r\n", 200),
    ],
)
async def test_an_answer_without_a_body_ends_with_its_head(method: str, answer: bytes, status: int) -> None:
    async with transport_to(always(answer)) as (server, transport):
        for _ in range(2):
            response = await transport.handle_async_request(server.request(method))
            assert (response.status_code, await body_of(response)) == (status, b"")


async def test_informational_answers_are_passed_over() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with transport_to(always(early + HELLO)) as (server, transport):
        response = await transport.handle_async_request(server.request())
        assert (response.status_code, "link" in response.headers) == (200, False)
        assert await body_of(response) == b"hello"


async def test_what_has_come_is_handed_on_before_the_rest_exists() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK + b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await go_on.wait()
        await peer.say(b"3\r\ntwo\r\n0\r\n\r\n")

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request())
        chunks = aiter(response.stream)  # type: ignore[arg-type]
        assert await anext(chunks) == b"one"
        go_on.set()
        assert [chunk async for chunk in chunks] == [b"two"]


# --- connections --------------------------------------------------------------------------------


async def test_a_connection_is_used_again() -> None:
    async with transport_to(always(HELLO)) as (server, transport):
        for _ in range(3):
            assert await fetch(transport, server.request()) == b"hello"
        assert server.connections == 1


async def test_requests_at_the_same_time_have_a_connection_each() -> None:
    async with transport_to(always(HELLO, step=1)) as (server, transport):
        bodies = await asyncio.gather(*(fetch(transport, server.request()) for _ in range(50)))
        assert bodies == [b"hello"] * 50
        assert server.connections == 50
        assert await fetch(transport, server.request()) == b"hello"
        assert server.connections == 50


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: 5\r\nconnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        HELLO + b"junk",
        HELLO + HELLO,  # an answer nobody asked for: the next request must not get it
    ],
    ids=["close", "1.0", "junk behind it", "another answer behind it"],
)
async def test_a_connection_that_cannot_be_trusted_further_is_not(answer: bytes) -> None:
    async with transport_to(always(answer)) as (server, transport):
        for number in (1, 2):
            assert await fetch(transport, server.request()) == b"hello"
            assert server.connections == number


async def test_bytes_on_an_idle_connection_end_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(HELLO)
        await asyncio.sleep(0.02)
        await peer.say(OK + b"content-length: 4\r\n\r\nevil")
        await peer.gone()

    async with transport_to(script) as (server, transport):
        assert await fetch(transport, server.request()) == b"hello"
        await eventually(lambda: server.open == 0)
        assert await fetch(transport, server.request()) == b"hello"
        assert server.connections == 2


async def test_a_connection_that_was_idle_too_long_is_not_used_again() -> None:
    async with transport_to(always(HELLO), keepalive_seconds=0.03) as (server, transport):
        await fetch(transport, server.request())
        await asyncio.sleep(0.05)
        await fetch(transport, server.request())
        assert server.connections == 2
        await eventually(lambda: server.open == 1)


async def test_a_connection_closed_by_the_server_while_idle_is_not_used_again() -> None:
    async with transport_to(once(HELLO)) as (server, transport):
        for number in range(1, 6):
            assert await fetch(transport, server.request()) == b"hello"
            await eventually(lambda: server.open == 0)
            await asyncio.sleep(0.01)
            assert server.connections == number


async def test_closing_an_unfinished_answer_closes_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK + b"content-length: 9\r\n\r\nhello")
        await peer.gone()

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request())
        await response.aclose()
        await eventually(lambda: server.open == 0)
        with pytest.raises(httpx.ReadError):
            await body_of(response)


async def test_closing_a_finished_answer_keeps_the_connection() -> None:
    async with transport_to(always(HELLO)) as (server, transport):
        for _ in range(2):
            response = await transport.handle_async_request(server.request())
            await body_of(response)
            await response.aclose()
        assert server.connections == 1


async def test_closing_the_transport_ends_what_is_under_way() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK + b"content-length: 9\r\n\r\nhello")
        await peer.gone()

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request())
        await transport.aclose()
        await eventually(lambda: server.open == 0)
        with pytest.raises(GONE):
            await body_of(response)
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(server.request())


# --- answers that are refused -------------------------------------------------------------------

CHUNKED_HEAD = OK + b"transfer-encoding: chunked\r\n\r\n"
REFUSED: dict[str, bytes] = {
    "length and coding": OK
    + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coding and length": OK
    + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "the same length twice": OK + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "list of lengths": OK + b"content-length: 5, 5\r\n\r\nhello",
    "signed length": OK + b"content-length: +5\r\n\r\nhello",
    "endless length": OK + b"content-length: 99999999999999999999\r\n\r\nhello",
    "coded twice": OK + b"transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coded otherwise": OK + b"transfer-encoding: gzip\r\n\r\nhello",
    "two codings": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "folded header": OK + b"x: a\r\n b\r\ncontent-length: 5\r\n\r\nhello",
    "bare newline": OK + b"x: a\ny: b\r\ncontent-length: 5\r\n\r\nhello",
    "bare return": OK + b"x: a\rb\r\ncontent-length: 5\r\n\r\nhello",
    "control character": OK + b"x: a\x01\r\ncontent-length: 5\r\n\r\nhello",
    "space in a name": OK + b"x : a\r\ncontent-length: 5\r\n\r\nhello",
    "switching protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
    "odd status": b"HTTP/1.1 999 Odd\r\ncontent-length: 5\r\n\r\nhello",
    "odd version": b"HTTP/2.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "no HTTP": b"220 mail.example.com ESMTP\r\n",
    "head without end": OK + b"x-a: b\r\n" * 20_000,
    "header without end": OK + b"x-a: " + b"b" * 200_000,
    "informational for ever": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 5_000,
}
BROKEN_CHUNKS: dict[str, bytes] = {
    "hexadecimal prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "negative": b"-5\r\nhello\r\n0\r\n\r\n",
    "space behind it": b"5 \r\nhello\r\n0\r\n\r\n",
    "endless": b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    "too short": b"4\r\nhello\r\n0\r\n\r\n",
    "too long": b"6\r\nhello\r\n0\r\n\r\n",
    "newline only": b"5\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "extension without end": b"5;" + b"x" * 200_000,
    "trailers without end": b"0\r\n" + b"x-a: b\r\n" * 20_000,
    "cut short": b"5\r\nhello\r\n",
    "cut in a chunk": b"5\r\nhel",
    "cut in the last chunk": b"5\r\nhello\r\n0\r\n",
}


@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize("kind", REFUSED)
async def test_an_ambiguous_or_boundless_head_is_refused(kind: str, step: int) -> None:
    async with transport_to(always(REFUSED[kind], step)) as (server, transport):
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(server.request())
        await eventually(lambda: server.open == 0)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("kind", BROKEN_CHUNKS)
async def test_a_broken_chunk_breaks_the_answer(kind: str, step: int) -> None:
    async with transport_to(once(CHUNKED_HEAD + BROKEN_CHUNKS[kind], step)) as (server, transport):
        response = await transport.handle_async_request(server.request())
        with pytest.raises(httpx.RemoteProtocolError):
            await body_of(response)
        await eventually(lambda: server.open == 0)


async def test_a_body_shorter_than_announced_is_broken() -> None:
    async with transport_to(once(OK + b"content-length: 6\r\n\r\nhello")) as (server, transport):
        response = await transport.handle_async_request(server.request())
        with pytest.raises(httpx.RemoteProtocolError):
            await body_of(response)


# --- requests that are refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x", b"a\r\ny: b")],
        [(b"x", b"a\nb")],
        [(b"x", b"a\rb")],
        [(b"x", b"a\x00b")],
        [(b"x\r\ny", b"a")],
        [(b"x y", b"a")],
        [(b"", b"a")],
        [(b"content-length", b"4")],
        [(b"content-length", b"3"), (b"content-length", b"3")],
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"3"), (b"expect", b"100-continue")],
        [],
    ],
)
async def test_a_request_that_could_be_read_in_two_ways_is_not_sent(
    headers: list[tuple[bytes, bytes]],
) -> None:
    async with transport_to(always(HELLO)) as (server, transport):
        url = server.request().url
        request = httpx.Request(
            "POST", url, headers=[(b"host", b"a"), *headers], stream=httpx.ByteStream(b"abc")
        )
        with pytest.raises(httpx.LocalProtocolError):
            await transport.handle_async_request(request)
        assert server.connections == 0


async def test_a_streamed_request_body_of_known_length_is_sent() -> None:
    class Parts(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"ab"
            yield b"c"

    async with transport_to(always(HELLO)) as (server, transport):
        headers = [(b"host", b"a"), (b"content-length", b"3")]
        request = httpx.Request("POST", server.request().url, headers=headers, stream=Parts())
        assert await fetch(transport, request) == b"hello"


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", OK + b"x-a: b\r\n"])
@pytest.mark.parametrize("how", ["reset", "hang up"])
async def test_a_server_that_dies_before_its_head_is_whole_gives_no_answer(said: bytes, how: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(said)
        await asyncio.sleep(0.02)
        if how == "reset":
            peer.reset()

    async with transport_to(script) as (server, transport):
        expected = httpx.ReadError if how == "reset" else httpx.RemoteProtocolError
        with pytest.raises(expected):
            await transport.handle_async_request(server.request())


@pytest.mark.parametrize("head", [OK + b"content-length: 9\r\n\r\n", CHUNKED_HEAD + b"9\r\n", OK + b"\r\n"])
async def test_a_reset_in_the_body_is_an_error_behind_what_had_come(head: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(head + b"hello")
        await asyncio.sleep(0.02)
        peer.reset()

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request())
        got, error = await until_broken(response)
        assert (got, type(error)) == (b"hello", httpx.ReadError)


async def test_a_reset_while_a_large_body_is_sent_is_an_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        peer.reset()

    async with transport_to(script) as (server, transport):
        with pytest.raises(GONE):
            await transport.handle_async_request(server.request("POST", b"x" * 20_000_000))


async def test_an_answer_that_comes_before_the_request_is_sent_counts_and_ends_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readexactly(1000)
        await peer.say(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nhello")
        await asyncio.sleep(0.5)

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request("POST", b"x" * 20_000_000))
        assert (response.status_code, await body_of(response)) == (413, b"hello")
        await eventually(lambda: server.open == 0)


async def test_nobody_listening_is_a_connect_error() -> None:
    async with transport_to(always(HELLO)) as (server, _):
        request = server.request()
    async with Transport(keepalive_seconds=1.0) as transport:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(request)


@pytest.mark.parametrize("url", ["http://name.invalid/", f"http://{'a' * 70}.invalid/"])
async def test_a_host_that_does_not_exist_is_a_connect_error(url: str) -> None:
    async with Transport(keepalive_seconds=1.0) as transport:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", url))


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///path"])
async def test_other_schemes_are_refused(url: str) -> None:
    async with Transport(keepalive_seconds=1.0) as transport:
        with pytest.raises((httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
            await transport.handle_async_request(httpx.Request("GET", url, headers=[(b"host", b"a")]))


# --- time ---------------------------------------------------------------------------------------


async def test_connecting_has_its_time_limit() -> None:
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # beyond what it queues, nobody answers
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        async with Transport(keepalive_seconds=1.0) as transport:
            request = httpx.Request("GET", url, extensions={"timeout": {"connect": 0.05}})
            with pytest.raises(httpx.ConnectTimeout):
                await transport.handle_async_request(request)


async def silent(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def test_silence_before_the_head_has_its_time_limit() -> None:
    async with transport_to(silent) as (server, transport):
        with pytest.raises(httpx.ReadTimeout):
            await transport.handle_async_request(server.request(timeout={"read": 0.03}))
        await eventually(lambda: server.open == 0)


async def test_a_time_limit_that_is_set_behind_the_head_counts_from_the_last_byte() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.15)
        await peer.say(CHUNKED_HEAD)
        for _ in range(6):
            await asyncio.sleep(0.03)
            await peer.say(b"1\r\nx\r\n")
        await peer.gone()

    async with transport_to(script) as (server, transport):
        request = server.request()
        response = await transport.handle_async_request(request)
        request.extensions["timeout"]["read"] = 0.1
        started = asyncio.get_running_loop().time()
        got, error = await until_broken(response)
        assert (got, type(error)) == (b"x" * 6, httpx.ReadTimeout)
        assert 0.25 < asyncio.get_running_loop().time() - started < 1.0
        await eventually(lambda: server.open == 0)


async def test_a_reader_that_takes_its_time_is_no_silence() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.say(OK + b"content-length: 10\r\n\r\nhello")
        await asyncio.sleep(0.1)
        await peer.say(b"world")

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request(timeout={"read": 0.06}))
        await asyncio.sleep(0.09)
        assert await body_of(response) == b"helloworld"


async def test_a_server_that_takes_nothing_has_its_time_limit() -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(5)

    async with transport_to(script) as (server, transport):
        request = server.request("POST", b"x" * 20_000_000, timeout={"write": 0.05})
        with pytest.raises(httpx.WriteTimeout):
            await transport.handle_async_request(request)


# --- slow readers and cancelled ones ------------------------------------------------------------


async def test_a_slow_reader_makes_the_server_wait_and_loses_nothing() -> None:
    block, blocks = b"x" * 65_536, 400
    taken = 0

    async def script(peer: Peer) -> None:
        nonlocal taken
        while await peer.request():
            await peer.say(OK + b"content-length: %d\r\n\r\n" % (len(block) * blocks))
            for _ in range(blocks):
                await peer.say(block)
                taken += len(block)

    async with transport_to(script) as (server, transport):
        response = await transport.handle_async_request(server.request())
        await asyncio.sleep(0.1)
        before = taken
        assert before < len(block) * blocks / 2  # the rest is in nobody's memory but the server's
        await asyncio.sleep(0.1)
        assert taken == before
        chunks = [chunk async for chunk in response.stream]  # type: ignore[union-attr]
        assert sum(map(len, chunks)) == len(block) * blocks
        assert max(map(len, chunks)) < LARGEST_WAITING_BYTES + 512 * 1024
        await fetch(transport, server.request())  # the connection reads again after all that


async def test_a_cancelled_read_loses_nothing_and_keeps_the_connection() -> None:
    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.say(OK + b"content-length: 10\r\n\r\n")
            for piece in (b"he", b"llo", b"wor", b"ld"):
                await asyncio.sleep(0.02)
                await peer.say(piece)

    async with transport_to(script) as (server, transport):
        for _ in range(2):
            response = await transport.handle_async_request(server.request())
            chunks = aiter(response.stream)  # type: ignore[arg-type]
            got = b""
            while len(got) < 10:
                reader = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0.013)
                if not reader.done():
                    reader.cancel()
                    await asyncio.wait({reader})
                if not reader.cancelled():
                    got += reader.result()
            assert got == b"helloworld"
            assert [chunk async for chunk in chunks] == []
        assert server.connections == 1


async def test_a_request_that_is_cancelled_before_its_head_closes_the_connection() -> None:
    async with transport_to(silent) as (server, transport):
        task = asyncio.create_task(transport.handle_async_request(server.request()))
        await eventually(lambda: server.open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.open == 0)


# --- what is told of a request on its way -------------------------------------------------------


async def test_the_stages_of_a_request_are_told_in_order() -> None:
    told: list[str] = []

    async def trace(event: str, info: dict[str, Any]) -> None:
        told.append(event)

    stages = [
        "http11.send_request_headers.started",
        "http11.send_request_body.complete",
        "http11.receive_response_headers.complete",
    ]
    async with transport_to(always(HELLO)) as (server, transport):
        await fetch(transport, server.request("POST", b"x" * 100_000, trace=trace))
        assert told == ["connection.connect_tcp.started", *stages]
        told.clear()
        await fetch(transport, server.request("POST", b"x", trace=trace))
        assert told == stages


async def test_a_request_counts_as_sent_only_when_all_of_it_has_left() -> None:
    told: list[str] = []
    read_on = asyncio.Event()

    async def trace(event: str, info: dict[str, Any]) -> None:
        told.append(event)

    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await read_on.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await peer.request()
        await peer.say(HELLO)

    async with transport_to(script) as (server, transport):
        task = asyncio.create_task(fetch(transport, server.request("POST", b"x" * 20_000_000, trace=trace)))
        await asyncio.sleep(0.1)
        assert told[-1] == "http11.send_request_headers.started"
        read_on.set()
        assert await task == b"hello"
        assert told[-2] == "http11.send_request_body.complete"
