"""Bytes pass as they came: every one of them, at once, and no faster than they are taken."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.api import connection as connection_module
from tests.e2e.holding import Held
from tests.fakes import DONE, FakeServer, Received, Wire, chat_body, chat_event, chat_stream, event
from tests.proxies import proxy_before
from tests.raw_http import Connection, chat, request
from tests.waiting import eventually

MESSAGES = "/v1/messages"


def streaming(chunks: list[bytes]) -> Any:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin(extra="x-backend: yes\r\n")
        for chunk in chunks:
            await wire.chunk(chunk)
        await wire.end()

    return answer


def cut(data: bytes, seed: int) -> Iterator[bytes]:
    dice = random.Random(seed)
    while data:
        size = dice.randint(1, 40)
        yield data[:size]
        data = data[size:]


# --- byte for byte --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_passes_byte_for_byte_however_it_is_cut(
    fake: FakeServer, seed: int, usage: bool
) -> None:
    whole = b"".join(chat_stream(20, usage=usage))
    fake.answer = streaming(list(cut(whole, seed)))
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True, stream_options={"include_usage": usage}))
        assert reply.whole
        assert reply.body == whole
        assert reply.header("x-backend") == "yes"
        assert reply.header("content-type") == "text/event-stream; charset=utf-8"
        assert reply.header("transfer-encoding") == "chunked"
        await proxy.settled()


async def test_events_that_are_no_events_of_ours_pass_as_well(fake: FakeServer) -> None:
    odd = [
        b": ping\n\n",
        b"retry: 5\n\n",
        b"event: x\r\ndata: \xff\xfe\x00\r\n\r\n",
        b"data: {broken\n\n",
        DONE,
    ]
    fake.answer = streaming([chat_event("a"), *odd])
    async with proxy_before(fake) as proxy:
        assert (await proxy.ask(chat(stream=True))).body == chat_event("a") + b"".join(odd)
        await proxy.settled()


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
async def test_an_answer_of_any_size_passes_whole(fake: FakeServer, size: int) -> None:
    content = random.Random(size).randbytes(size)
    fake.answer = lambda _, wire: wire.whole(content, kind="application/octet-stream")
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat())
        assert (reply.whole, reply.body, reply.header("content-length")) == (True, content, str(size))
        await proxy.settled()


async def test_the_first_token_is_sent_on_before_the_second_exists(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy, await Connection.open(proxy.port) as connection:
        await connection.send(request(chat(stream=True)))
        assert (await connection.head()).status == 200
        assert await connection.chunk() == chat_event("", role="assistant")
        held.go.set()
        await connection.closed(0.2)
    await eventually(lambda: not fake.open)


# --- the request ----------------------------------------------------------------------------------


async def test_a_request_goes_on_as_it_came_with_the_rid_as_its_last_key(fake: FakeServer) -> None:
    body = b'{ "model" : "tiny",\n "messages":[{"role":"user","content":"h\\u0069 \xc3\xa9"}], "x": 1e2 }\n'
    async with proxy_before(fake) as proxy:
        await proxy.ask(body)
        await proxy.ask(body.replace(b'"x"', b'"rid": "mine", "x"'))
    first, second = fake.posts()
    head, _, _ = body.rpartition(b"}")
    assert first.body == head + b',"rid":"' + first.rid.encode() + b'"}\n'
    assert len(first.rid) == len(second.rid) == 32
    assert first.rid != second.rid != "mine"
    assert first.headers["content-length"] == str(len(first.body))


async def test_body_fields_that_steer_the_engine_are_overridden(fake: FakeServer) -> None:
    steering: dict[str, Any] = {"priority": 99, "data_parallel_rank": 3, "bootstrap_host": "evil", "rid": "a"}
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat(**steering))
    sent = fake.posts()[0].json()
    assert sent["rid"] != "a"
    assert {sent[name] for name in steering if name != "rid"} == {None}


# --- calibration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_the_usage_that_the_proxy_asked_for_is_taken_out_again(fake: FakeServer, seed: int) -> None:
    plain, asked = b"".join(chat_stream(20)), b"".join(chat_stream(20, usage=True))

    async def answer(received: Received, wire: Wire) -> None:
        wants = (received.json().get("stream_options") or {}).get("include_usage")
        await streaming(list(cut(asked if wants else plain, seed)))(received, wire)

    fake.answer = answer
    async with proxy_before(fake, calibrate_streams=0.01) as proxy:
        assert (await proxy.ask(chat(stream=True))).body == plain
        assert fake.posts()[-1].json()["stream_options"] == {"include_usage": True}
        assert proxy.app.sizer.stats().samples["tiny"] == 1
        wanted = await proxy.ask(chat(stream=True, stream_options={"include_usage": True}))
        assert wanted.body == asked
        untouched = await proxy.ask(chat(stream=True, stream_options={"include_usage": False}))
        assert untouched.body == plain
        await proxy.settled()


async def test_calibration_switched_off_touches_no_stream(fake: FakeServer) -> None:
    fake.answer = streaming(chat_stream(3))
    async with proxy_before(fake, calibrate_streams=0.0) as proxy:
        await proxy.ask(chat(stream=True))
    assert "stream_options" not in fake.posts()[0].json()


async def test_answers_that_do_not_stream_teach_the_counter_as_well(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat())
        assert proxy.app.sizer.stats().samples["tiny"] == 1
        assert proxy.metric("completion_tokens_total", lane="short") == 8


# --- backpressure ---------------------------------------------------------------------------------


async def test_a_slow_client_slows_the_server_and_fills_no_memory(fake: FakeServer) -> None:
    text = chat_event("x" * 16_000)
    fake.answer = Held(fake, text=text)
    async with proxy_before(fake) as proxy:
        connection = await Connection.open(proxy.port, receive_buffer_bytes=16_384)
        await connection.send(request(chat(stream=True)))
        await connection.head()
        (job,) = proxy.app.gate.controller.jobs.values()
        await asyncio.sleep(0.6)
        stood_at = job.generated_tokens
        await asyncio.sleep(0.6)
        assert 0 <= job.generated_tokens - stood_at <= 2
        assert stood_at * len(text) < 32_000_000  # the kernel's buffers of four sockets
        (protocol,) = proxy.connections()
        assert protocol.transport.get_write_buffer_size() < 300_000
        connection.leave(reset=True)
        await proxy.settled()


async def test_a_client_that_never_reads_does_not_hold_its_tokens_for_ever(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "UNREAD_SECONDS", 0.3)
    fake.answer = Held(fake, text=chat_event("x" * 60_000))
    async with proxy_before(fake) as proxy:
        connection = await Connection.open(proxy.port, receive_buffer_bytes=16_384)
        await connection.send(request(chat(stream=True)))
        await connection.head()
        await eventually(lambda: proxy.metric("disconnects_total", phase="streaming") == 1)
        await proxy.settled()
        connection.leave(reset=True)


async def test_a_client_that_pauses_and_reads_on_gets_everything(fake: FakeServer) -> None:
    chunks = [chat_event(str(number) + "x" * 30_000) for number in range(200)]
    fake.answer = streaming([*chunks, DONE])
    async with proxy_before(fake) as proxy:
        async with await Connection.open(proxy.port, receive_buffer_bytes=16_384) as connection:
            await connection.send(request(chat(stream=True)))
            await asyncio.sleep(0.3)
            reply = await connection.reply()
        assert reply.whole
        assert reply.body == b"".join([*chunks, DONE])
        await proxy.settled()


# --- the other APIs -------------------------------------------------------------------------------


async def test_messages_are_streamed_and_counted_in_their_own_words(fake: FakeServer) -> None:
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 30, "output_tokens": 0}}},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "message_delta", "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    lines = [event(document, document["type"]) for document in events]
    fake.answer = streaming(lines)
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True, max_tokens=10), MESSAGES)
        assert reply.body == b"".join(lines)
        assert proxy.metric("completion_tokens_total", lane="short") == 7
        assert proxy.metric("prompt_tokens_total", lane="short") == 30
        assert "rid" not in fake.posts()[0].json()
        assert fake.posts()[0].headers["x-override-rid"]
        await proxy.settled()


async def test_other_inference_paths_are_admitted_like_chat(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        for path, body in {
            "/v1/completions": {"model": "m", "prompt": "hi"},
            "/generate": {"text": "hi"},
            "/v1/embeddings": {"model": "m", "input": "hi"},
            "/v1/responses": {"model": "m", "input": "hi"},
        }.items():
            reply = await proxy.ask(body, path)
            assert (reply.status, reply.header("x-admission-lane")) == (200, "short"), path
            assert fake.posts()[-1].rid
        await proxy.settled()


async def test_reads_are_forwarded_with_their_body_and_not_counted(fake: FakeServer) -> None:
    body = b'{"prompt": "as it \\u0063ame"}'
    async with proxy_before(fake) as proxy:
        assert (await proxy.ask(body, "/v1/tokenize?a=b")).json() == chat_body()
        sent = fake.posts()[0]
        assert (sent.target, sent.body) == ("/v1/tokenize?a=b", body)
        assert proxy.metric("requests_total", lane="short", outcome="completed") == 0
