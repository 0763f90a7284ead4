"""The backend fails, at each stage: what its client gets, and that nothing is lost in between."""

import asyncio
import json

import pytest

from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.e2e.refusing import PATIENCE, check_refusal
from tests.fakes import FakeServer, Received, Wire, chat_body, chat_stream, error_event
from tests.proxies import proxy_before
from tests.raw_http import chat
from tests.waiting import eventually

MESSAGES = "/v1/messages"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_dies_before_its_first_byte_is_a_502(fake: FakeServer, stream: bool) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        wire.reset()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=stream))
        assert reply.status == 502
        assert reply.json()["error"]["code"] == "upstream_failed"
        assert "127.0.0.1" not in reply.body.decode()
        await proxy.settled(15)


async def test_a_stream_whose_backend_dies_ends_with_an_error_event(fake: FakeServer) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin()
        for chunk in chat_stream(3)[:3]:
            await wire.chunk(chunk)
        await asyncio.sleep(0.05)
        wire.reset()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True))
        assert reply.status == 200
        assert reply.whole
        *events, last, done, rest = reply.body.split(b"\n\n")
        assert b"".join(event + b"\n\n" for event in events) == b"".join(chat_stream(3)[:3])
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_broken"
        assert (done, rest) == (b"data: [DONE]", b"")
        await proxy.settled(15)
        assert proxy.metric("requests_total", lane="short", outcome="broken") == 1


async def test_an_event_cut_in_two_does_not_hide_the_error_that_follows(fake: FakeServer) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(chat_stream(1)[0] + b'data: {"id": "half')
        await asyncio.sleep(0.05)
        wire.reset()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True))
        lines = reply.body.split(b"\n")
        assert b'data: {"id": "half' in lines
        assert any(line.startswith(b'data: {"error"') for line in lines)
        await proxy.settled(15)


async def test_a_messages_stream_breaks_in_anthropics_words(fake: FakeServer) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n')
        await asyncio.sleep(0.05)
        wire.reset()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        body = {"model": "m", "max_tokens": 5, "stream": True, "messages": chat()["messages"]}
        reply = await proxy.ask(body, MESSAGES)
        name, data = reply.body.split(b"\n\n")[-2].split(b"\n")
        assert name == b"event: error"
        assert json.loads(data.removeprefix(b"data: "))["error"]["type"] == "api_error"
        assert b"[DONE]" not in reply.body
        await proxy.settled(15)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_answer_that_is_no_stream_and_breaks_off_arrives_incomplete(
    fake: FakeServer, framing: str
) -> None:
    body = json.dumps(chat_body()).encode()

    async def answer(_: Received, wire: Wire) -> None:
        if framing == "length":
            await wire.raw(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n" + body
            )
        else:
            await wire.begin(kind="application/json")
            await wire.chunk(body)
        await asyncio.sleep(0.05)
        wire.hang_up()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        for stream in (False, True):
            reply = await proxy.ask(chat(stream=stream))
            assert reply.status == 200
            assert not reply.whole
            assert reply.body == body
        await proxy.settled(15)
        assert proxy.metric("requests_total", lane="short", outcome="broken") == 2


async def test_silence_in_mid_stream_counts_as_death(fake: FakeServer) -> None:
    fake.answer = Held(fake)
    async with proxy_before(fake, stall_seconds=0.2) as proxy:
        reply = await proxy.ask(chat(stream=True))
        assert b"upstream_broken" in reply.body
        await proxy.settled(15)


@pytest.mark.parametrize(("code", "status"), [(400, 400), (500, 500)])
async def test_an_error_event_on_200_becomes_a_status_while_nothing_was_sent(
    fake: FakeServer, code: int, status: int
) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(error_event("too long", code))
        await wire.chunk(b"data: [DONE]\n\n")
        await wire.end()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True))
        assert reply.status == status
        assert reply.json()["error"]["message"] == "too long"
        await proxy.settled()
        assert fake.aborts() == []
        assert proxy.metric("aborts_total") == 0


async def test_what_was_not_sent_goes_to_another_backend(fake: FakeServer) -> None:
    other = await FakeServer().start()
    async with proxy_before(fake, other, poll_seconds=5.0) as proxy:
        await fake.stop()
        replies = [await proxy.ask(chat()) for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert len(other.posts()) == 3
        assert (await proxy.get("/v1/models")).status == 200
        await proxy.settled()
    await other.stop()


async def test_a_server_whose_queue_is_full_is_asked_again_in_time(
    fake: FakeServer,
) -> None:
    fake.answer = lambda _, wire: wire.json({"object": "error", "message": "The request queue is full."}, 503)
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(), headers=[(PATIENCE, "1200")])
        check_refusal(reply, 429, "deadline")
        assert 2 <= len(fake.posts()) <= 4
        await proxy.settled()
        busy_once = iter([503])

        async def answer(_: Received, wire: Wire) -> None:
            status = next(busy_once, 200)
            await wire.json({"message": "full"} if status == 503 else chat_body(), status)

        fake.answer = answer
        assert (await proxy.ask(chat())).status == 200
        await proxy.settled()


async def test_a_full_queue_while_draining_is_refused_for_the_drain(fake: FakeServer) -> None:
    reached, drained = asyncio.Event(), asyncio.Event()

    async def answer(_: Received, wire: Wire) -> None:
        reached.set()
        await drained.wait()
        await wire.json({"object": "error", "message": "full"}, 503)

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        asked = asyncio.create_task(proxy.ask(chat()))
        await reached.wait()
        proxy.app.gate.drain()
        drained.set()
        check_refusal(await asked, 503, "draining")
        assert len(fake.posts()) == 1
        await proxy.settled()


async def test_full_queues_of_many_requests_make_no_storm_either(fake: FakeServer) -> None:
    fake.answer = lambda _, wire: wire.json({"object": "error", "message": "full"}, 503)
    async with proxy_before(fake) as proxy:
        patience = [(PATIENCE, "1500")]
        replies = await asyncio.gather(*(proxy.ask(chat(), headers=patience) for _ in range(30)))
        assert {reply.status for reply in replies} == {429}
        assert len(fake.posts()) <= 30 * 4
        await proxy.settled()


async def test_the_queued_wait_for_another_backend_until_their_time_is_over(
    fake: FakeServer,
) -> None:
    fake.pool_tokens = 20_000
    fake.answer = Held(fake)
    async with proxy_before(fake) as proxy:
        first = asyncio.create_task(proxy.ask(ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: len(fake.posts()) == 1)
        patience = [(PATIENCE, "1500")]
        second = asyncio.create_task(proxy.ask(ids(15_000), COMPLETIONS, headers=patience))
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        started = asyncio.get_running_loop().time()
        await fake.stop()
        check_refusal(await second, 503, "no_backend")
        assert asyncio.get_running_loop().time() - started > 0.5
        assert b"upstream_broken" in (await first).body
        await proxy.settled(15)
