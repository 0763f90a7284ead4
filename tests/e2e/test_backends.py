"""Servers come, go, come back smaller, and say things that no server should."""

import asyncio
from typing import Any

import pytest

from proxy.upstream import abort as abort_module
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer, Received, Wire, chat_body, chat_event, chat_stream
from tests.proxies import Running, proxy_before
from tests.raw_http import Reply, chat
from tests.waiting import eventually

OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def saying(data: bytes, *, then_hang_up: bool = True) -> Any:
    """Answers any request with exactly these bytes."""

    async def answer(_: Received, wire: Wire) -> None:
        await wire.raw(data)
        if then_hang_up:
            wire.hang_up()

    return answer


async def check_usable(proxy: Running, fake: FakeServer) -> None:
    """The ledger is empty, and the next request is served as if nothing had been."""
    fake.answer = None
    await proxy.settled(15)
    assert (await proxy.ask(chat())).json() == chat_body()
    await proxy.settled()


# --- coming and going -----------------------------------------------------------------------------


async def test_a_backend_that_is_down_at_start_is_found_when_it_comes(fake: FakeServer) -> None:
    port = fake.port
    await fake.stop()
    fake.port = port
    async with proxy_before(fake, wait=False) as proxy:
        assert (await proxy.ask(chat())).status == 503
        await fake.start()
        await eventually(lambda: "b0" in proxy.app.gate.samples)
        assert (await proxy.ask(chat())).status == 200
        await proxy.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_killed_under_its_requests_and_restarted_serves_on(
    fake: FakeServer, stream: bool
) -> None:
    fake.answer = Held(fake)
    async with proxy_before(fake) as proxy:
        asked = [asyncio.create_task(proxy.ask(chat(stream=stream))) for _ in range(5)]
        await eventually(lambda: len(fake.posts()) == 5)
        if stream:
            await eventually(lambda: proxy.app.gate.controller.lines["b0"].pool.backlog_tokens == 0)
        await fake.stop()
        replies = await asyncio.gather(*asked)
        assert {reply.status for reply in replies} == ({200} if stream else {502})
        assert not stream or all(b"upstream_broken" in reply.body for reply in replies)
        await eventually(lambda: not proxy.app.gate.controller.lines["b0"].pool.up)
        await proxy.settled(15)
        assert (await proxy.ask(chat())).status == 503
        fake.answer = None
        await fake.start()
        await eventually(lambda: proxy.app.gate.controller.lines["b0"].pool.up)
        assert (await proxy.ask(chat())).status == 200
        await proxy.settled()


async def test_one_that_comes_back_smaller_is_believed(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        assert (await proxy.ask(ids(30_000), COMPLETIONS)).status == 200
        await fake.stop()
        await eventually(lambda: not proxy.app.gate.controller.lines["b0"].pool.up)
        fake.pool_tokens = 20_000
        await fake.start()
        await eventually(lambda: proxy.app.gate.controller.lines["b0"].pool.up)
        assert (await proxy.ask(ids(30_000), COMPLETIONS)).status == 400
        assert (await proxy.ask(ids(10_000), COMPLETIONS)).status == 200
        assert proxy.metric("pool_tokens", backend="b0") == 20_000
        await proxy.settled()


async def test_requests_of_a_rank_that_is_gone_after_a_restart_are_still_let_go(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abort_module, "CONFIRM_SECONDS", 0.5)
    fake.dp_size = 2
    fake.answer = Held(fake)
    async with proxy_before(fake) as proxy:
        await eventually(lambda: len(proxy.app.gate.samples) == 2)
        asked = [asyncio.create_task(proxy.ask(chat())) for _ in range(4)]
        await eventually(lambda: len(fake.posts()) == 4)
        await fake.stop()
        fake.dp_size = 1
        await fake.start()
        assert {reply.status for reply in await asyncio.gather(*asked)} == {502}
        await eventually(lambda: "b0" in proxy.app.gate.samples)
        await check_usable(proxy, fake)
        assert (await proxy.get("/v1/models")).status == 200


async def test_a_connection_that_the_server_closed_while_idle_costs_no_request(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        for _ in range(5):
            assert (await proxy.ask(chat())).status == 200
            for writer in tuple(fake.open):
                Wire(writer).reset()
            await asyncio.sleep(0.01)
        await proxy.settled()


# --- saying the wrong thing -----------------------------------------------------------------------

BEFORE_ANY_ANSWER = {
    "nothing": b"",
    "garbage": b"\x00\x01\x02\xff\xfe\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "another protocol": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 2_000_000,
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
    "an unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: rot13\r\n\r\nhello",
    "a status out of range": b"HTTP/1.1 999 X\r\ncontent-length: 5\r\n\r\nhello",
    "a status that is no number": b"HTTP/1.1 OK 200\r\ncontent-length: 5\r\n\r\nhello",
    "another protocol agreed to": b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello",
    "a control character": b"HTTP/1.1 200 OK\r\nx: a\x01b\r\ncontent-length: 5\r\n\r\nhello",
    "a folded header": b"HTTP/1.1 200 OK\r\nx: a\r\n\tb\r\nset cookie: c\r\ncontent-length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("data", BEFORE_ANY_ANSWER.values(), ids=BEFORE_ANY_ANSWER.keys())
async def test_what_is_no_answer_becomes_a_502(fake: FakeServer, data: bytes) -> None:
    fake.answer = saying(data)
    async with proxy_before(fake) as proxy:
        for body in (chat(), chat(stream=True)):
            reply = await proxy.ask(body)
            assert reply.status == 502
            assert reply.json()["error"]["code"] == "upstream_failed"
        assert (await proxy.ask(b"{}", "/tokenize")).status == 502
        await check_usable(proxy, fake)


BROKEN_BODIES = {
    "too short": OK_HEAD + b"content-length: 50\r\n\r\nhello",
    "chunks without end": OK_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "a chunk that is too short": OK_HEAD + b"transfer-encoding: chunked\r\n\r\n9\r\nhello",
    "no chunk at all": OK_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    "a chunk of a negative size": OK_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n-1\r\n",
}


@pytest.mark.parametrize("data", BROKEN_BODIES.values(), ids=BROKEN_BODIES.keys())
async def test_an_answer_whose_body_is_not_whole_is_not_passed_off_as_whole(
    fake: FakeServer, data: bytes
) -> None:
    fake.answer = saying(data)
    async with proxy_before(fake) as proxy:
        for body, path in ((chat(), "/v1/chat/completions"), (chat(stream=True), "/v1/chat/completions"),
                           ({}, "/tokenize")):  # fmt: skip
            reply = await proxy.ask(body, path)
            assert not reply.whole
            assert reply.body in (b"hello", b"")
        await check_usable(proxy, fake)


async def ask_twice(proxy: Running, fake: FakeServer, data: bytes) -> Reply:
    """The answer to a request for which the backend says `data`; the next one must not see any of it."""
    fake.answer = saying(data, then_hang_up=False)
    reply = await proxy.ask(chat())
    await check_usable(proxy, fake)
    return reply


async def test_a_length_beside_chunks_does_not_count(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        for length in (b"1", b"3", b"500"):
            head = OK_HEAD + b"content-length: " + length + b"\r\ntransfer-encoding: chunked\r\n\r\n"
            reply = await ask_twice(proxy, fake, head + b"3\r\nabc\r\n0\r\n\r\n")
            assert (reply.status, reply.body) in ((200, b"abc"), (502, reply.body))
            assert reply.whole


async def test_an_answer_without_any_framing_ends_with_its_connection(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        fake.answer = saying(OK_HEAD + b"\r\nhello")
        reply = await proxy.ask(chat())
        assert (reply.status, reply.whole, reply.body) == (200, True, b"hello")
        fake.answer = saying(SSE_HEAD + b"\r\n" + b"".join(chat_stream(3)))
        assert (await proxy.ask(chat(stream=True))).body == b"".join(chat_stream(3))
        await check_usable(proxy, fake)


async def test_bytes_behind_an_answer_are_nobodys_answer(fake: FakeServer) -> None:
    smuggled = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    async with proxy_before(fake) as proxy:
        reply = await ask_twice(proxy, fake, OK_HEAD + b"content-length: 5\r\n\r\nhello" + smuggled)
        assert reply.body == b"hello"


async def test_interim_answers_are_passed_over(fake: FakeServer) -> None:
    interim = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n"
    async with proxy_before(fake) as proxy:
        reply = await ask_twice(proxy, fake, interim + OK_HEAD + b"content-length: 5\r\n\r\nhello")
        assert (reply.status, reply.body) == (200, b"hello")


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_are_whole(fake: FakeServer, status: int) -> None:
    async with proxy_before(fake) as proxy:
        reply = await ask_twice(proxy, fake, b"HTTP/1.1 %d X\r\n\r\n" % status)
        assert (reply.status, reply.whole) == (status, True)


async def test_a_redirect_is_the_clients_to_follow(fake: FakeServer) -> None:
    fake.answer = saying(b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")
    async with proxy_before(fake) as proxy:
        assert (await proxy.ask(chat())).status == 307
        await check_usable(proxy, fake)


@pytest.mark.parametrize("tokens", [0, 1, 3])
@pytest.mark.parametrize("how", ["reset", "hang_up", "half_chunk"])
async def test_wherever_a_stream_breaks_its_client_hears_of_it(
    fake: FakeServer, tokens: int, how: str
) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin()
        for token in [chat_event(" w")] * tokens:
            await wire.chunk(token)
        await asyncio.sleep(0.02)
        if how == "half_chunk":
            await wire.raw(b"ff\r\ndata: ")
        wire.reset() if how == "reset" else wire.hang_up()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True))
        assert reply.whole
        if tokens:
            assert reply.body.startswith(chat_event(" w") * tokens)
            assert b'"code":"upstream_broken"' in reply.body
            assert reply.body.endswith(b"\n\ndata: [DONE]\n\n")
        else:
            assert reply.status == 502
        await check_usable(proxy, fake)


async def test_a_stream_with_a_length_that_breaks_is_cut_off(fake: FakeServer) -> None:
    fake.answer = saying(SSE_HEAD + b"content-length: 5000\r\n\r\n" + chat_event(" w"))
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True))
        assert (reply.status, reply.whole, reply.body) == (200, False, chat_event(" w"))
        await check_usable(proxy, fake)


async def test_a_server_that_talks_nonsense_about_itself_stops_nobody(fake: FakeServer) -> None:
    other = await FakeServer().start()
    fake.info = {"dp_size": -3, "max_running_requests": "many", "internal_states": [7], "page_size": None}
    fake.missing = {"/v1/models", "/model_info"}
    async with proxy_before(fake, other, wait=False) as proxy:
        await eventually(lambda: "b1" in proxy.app.gate.samples)
        replies = [await proxy.ask(chat()) for _ in range(5)]
        assert {reply.status for reply in replies} == {200}
        await proxy.settled()
    await eventually(lambda: not other.open)
    await other.stop()
