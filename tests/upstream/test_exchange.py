"""Requests forwarded and answers passed on, over real sockets."""

import asyncio
import json
import logging
from collections.abc import Awaitable

import pytest

from proxy.upstream import (
    BodyRefused,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamUnreachable,
    Usage,
)
from proxy.upstream import sender as sender_module
from tests.fakes import (
    DONE,
    Answer,
    FakeServer,
    Received,
    Wire,
    chat_body,
    chat_stream,
    error_event,
    event,
    usage_event,
)
from tests.upstream.support import CHAT, Connect, Heard, call, read_all, read_until_broken
from tests.waiting import eventually


def streaming(chunks: list[bytes], pause_seconds: float = 0.0) -> Answer:
    """Answers with these HTTP chunks."""

    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        for chunk in chunks:
            await wire.chunk(chunk)
            await asyncio.sleep(pause_seconds)
        await wire.end()

    return answer


async def test_the_body_arrives_as_it_was_but_for_the_rid(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    sent = call(headers=[(b"content-type", b"application/json"), (b"x-mine", b"1")])
    await read_all(await backend.send(sent))
    (request,) = fake.posts()
    assert request.body == sent.body[:-1] + b',"rid":"' + sent.rid.encode() + b'"}'
    assert request.headers["x-mine"] == "1"
    assert request.headers["content-length"] == str(len(request.body))
    assert request.headers["accept-encoding"] == "identity"
    assert "user-agent" not in request.headers


async def test_a_whole_answer_passes_with_its_usage_seen(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    exchange = await backend.send(call())
    assert exchange.observed.ended  # without streaming the engine is done before it answers
    body = await read_all(exchange)
    assert json.loads(body) == chat_body()
    assert exchange.status == 200
    assert (b"server", b"fake") in exchange.headers
    assert (b"content-length", str(len(body)).encode()) in exchange.headers
    assert exchange.observed.usage == Usage(17, 8, None)
    assert exchange.observed.generated_tokens == 8
    assert exchange.observed.first_token_at is not None


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
async def test_a_stream_passes_byte_for_byte_at_any_chunking(
    fake: FakeServer, connect: Connect, size: int
) -> None:
    data = b"".join(chat_stream(8))
    fake.answer = streaming([data[i : i + size] for i in range(0, len(data), size)])
    backend = await connect()
    exchange = await backend.send(call(stream=True))
    assert exchange.observed.first_token_at is not None
    assert await read_all(exchange) == data
    assert exchange.observed.ended
    assert not exchange.observed.aborted
    assert exchange.observed.usage is None
    assert all(name != b"transfer-encoding" for name, _ in exchange.headers)


async def test_the_first_event_is_handed_on_before_the_second_exists(
    fake: FakeServer, connect: Connect
) -> None:
    first, *rest = chat_stream(2)
    go_on = asyncio.Event()

    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(first)
        await go_on.wait()
        for chunk in rest:
            await wire.chunk(chunk)
        await wire.end()

    fake.answer = answer
    backend = await connect()
    async with await backend.send(call(stream=True)) as exchange:
        assert await anext(exchange) == first
        assert not exchange.observed.ended
        go_on.set()
        assert b"".join([chunk async for chunk in exchange]) == b"".join(rest)


async def test_a_usage_chunk_that_we_asked_for_is_swallowed(fake: FakeServer, connect: Connect) -> None:
    fake.answer = streaming(chat_stream(8, usage=True))
    backend = await connect()
    exchange = await backend.send(call(stream=True, ask_usage=True))
    assert await read_all(exchange) == b"".join(chat_stream(8))
    assert exchange.observed.usage == Usage(17, 8, 5)
    assert fake.posts()[0].json()["stream_options"] == {"include_usage": True}


async def test_a_length_that_no_longer_holds_is_not_announced(fake: FakeServer, connect: Connect) -> None:
    data = b"".join(chat_stream(8, usage=True))
    fake.answer = lambda request, wire: wire.whole(data, kind="text/event-stream")
    backend = await connect()
    plain = await backend.send(call(stream=True))
    assert await read_all(plain) == data
    assert (b"content-length", str(len(data)).encode()) in plain.headers
    asked = await backend.send(call(stream=True, ask_usage=True))
    assert await read_all(asked) == b"".join(chat_stream(8))
    assert all(name != b"content-length" for name, _ in asked.headers)


async def test_a_usage_chunk_that_the_client_asked_for_passes(fake: FakeServer, connect: Connect) -> None:
    fake.answer = streaming(chat_stream(8, usage=True))
    backend = await connect()
    document = {"messages": [], "stream_options": {"include_usage": True}}
    exchange = await backend.send(call(document=document, stream=True, ask_usage=True))
    assert await read_all(exchange) == b"".join(chat_stream(8, usage=True))
    assert exchange.observed.usage == Usage(17, 8, 5)


async def test_nothing_is_swallowed_where_the_server_sends_usage_unasked(
    fake: FakeServer, connect: Connect
) -> None:
    fake.info = {"stream_response_default_include_usage": True}
    fake.answer = streaming(chat_stream(8, usage=True))
    backend = await connect()
    exchange = await backend.send(call(stream=True, ask_usage=True))
    assert await read_all(exchange) == b"".join(chat_stream(8, usage=True))
    assert "stream_options" not in fake.posts()[0].json()


async def test_the_first_token_is_announced_once(fake: FakeServer, connect: Connect) -> None:
    created = event({"type": "response.created"}, "response.created")
    delta = event({"type": "response.output_text.delta", "delta": "x"}, "response.output_text.delta")
    fake.answer = streaming([created, delta, delta], pause_seconds=0.02)
    backend = await connect()
    calls: list[int] = []
    async with await backend.send(call("/v1/responses", {"input": "hi"}, stream=True)) as exchange:
        exchange.on_first_token = lambda: calls.append(1)
        assert not calls
        async for _ in exchange:
            pass
    assert calls == [1]
    exchange.on_first_token = lambda: calls.append(2)
    assert calls == [1, 2]


@pytest.mark.parametrize("code", [400, 500])
async def test_an_error_event_before_anything_else_is_a_status(
    fake: FakeServer, connect: Connect, code: int
) -> None:
    failure = [error_event("Input length (195010 tokens) exceeds", code), usage_event(0, 0), DONE]
    fake.answer = streaming(failure)
    backend = await connect()
    async with await backend.send(call(stream=True, ask_usage=True)) as exchange:
        assert exchange.early_error == (code, "Input length (195010 tokens) exceeds", "SERVICE_UNAVAILABLE")
        assert exchange.observed.ended
        assert exchange.observed.usage is None
        assert exchange.observed.first_token_at is None
    assert fake.aborts() == []


async def test_a_full_queue_is_back_pressure_in_every_shape(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    full = {"object": "error", "message": "The request queue is full.", "type": "503", "code": 503}
    fake.answer = lambda request, wire: wire.json(full, 503)
    with pytest.raises(UpstreamBusy, match="queue is full") as busy:
        await backend.send(call())
    assert busy.value.status == 503
    fake.answer = lambda request, wire: wire.json({}, 429)
    with pytest.raises(UpstreamBusy):
        await backend.send(call())
    fake.answer = streaming([error_event("The request queue is full.", 503), DONE])
    with pytest.raises(UpstreamBusy, match="queue is full"):
        await backend.send(call(stream=True))
    assert fake.aborts() == []


async def test_other_refusals_pass_as_they_are(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    fake.answer = lambda request, wire: wire.json({"object": "error", "message": "too long"}, 400)
    exchange = await backend.send(call(stream=True))
    assert exchange.status == 400
    assert json.loads(await read_all(exchange))["message"] == "too long"


async def test_a_failure_leaves_the_connection_usable(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    fake.answer = streaming([error_event("full", 503), usage_event(0, 0), DONE])
    for _ in range(3):
        with pytest.raises(UpstreamBusy):
            await backend.send(call(stream=True, ask_usage=True))
    assert len({request.connection for request in fake.posts()}) == 1


async def test_a_body_that_must_not_pass_is_refused_and_not_sent(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    with pytest.raises(BodyRefused, match="session_params"):
        await backend.send(call(document={"session_params": {"id": "s"}}))
    with pytest.raises(BodyRefused):
        await backend.send(call(body=b"not json"))
    assert fake.posts() == []


async def test_a_header_that_cannot_be_sent_is_the_clients_fault(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    with pytest.raises(BodyRefused, match="cannot be forwarded"):
        await backend.send(call(headers=[(b"x-bad", b"a\nb")]))
    assert fake.posts() == []


async def test_steering_fields_are_overridden_on_the_wire(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    sent = call(document={"messages": [], "rid": "a", "priority": 9, "data_parallel_rank": 3})
    await read_all(await backend.send(sent))
    document = fake.posts()[0].json()
    assert document["rid"] == sent.rid
    assert document["priority"] is None
    assert document["data_parallel_rank"] is None


async def test_each_api_carries_the_rid_where_it_can(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    responses, messages = (
        call("/v1/responses", {"input": "x", "priority": 3}),
        call("/v1/messages?beta=1", {}),
    )
    for sent in (responses, messages):
        await read_all(await backend.send(sent))
    first, second = fake.posts()
    assert first.json() == {"input": "x", "priority": 0, "request_id": f"resp_{responses.rid}"}
    assert second.body == messages.body
    assert second.headers["x-override-rid"] == messages.rid
    assert second.target == "/v1/messages?beta=1"


async def test_reads_are_forwarded_as_they_are(fake: FakeServer, connect: Connect) -> None:
    backend = await connect()
    exchange = await backend.send(call("/v1/models", method="GET", body=b"", rid=""))
    assert b'"tiny"' in await read_all(exchange)
    assert "content-length" not in fake.requests[-1].headers


async def test_the_backends_key_replaces_the_clients(fake: FakeServer, connect: Connect) -> None:
    fake.key = "secret"
    backend = await connect(spec={"api_key": "secret"})
    exchange = await backend.send(call(headers=[(b"Authorization", b"Bearer theirs")]))
    await read_all(exchange)
    assert exchange.status == 200
    assert "secret" not in repr(backend.spec)


async def test_a_slow_reader_slows_the_server(fake: FakeServer, connect: Connect) -> None:
    sent = 0
    block = event({"choices": [{"delta": {"content": "x" * 65_000}}]})

    async def answer(request: Received, wire: Wire) -> None:
        nonlocal sent
        await wire.begin()
        for _ in range(400):
            await wire.chunk(block)
            sent += 1
        await wire.chunk(DONE)
        await wire.end()

    fake.answer = answer
    backend = await connect()
    async with await backend.send(call(stream=True)) as exchange:
        await anext(exchange)
        await asyncio.sleep(0.3)
        held = sent
        await asyncio.sleep(0.2)
        assert sent == held < 400  # what fits the kernel's buffers, and no more
        total = sum([len(chunk) async for chunk in exchange])
    assert sent == 400
    assert total > 390 * len(block)


async def test_a_reset_in_mid_stream_breaks_it_with_a_reason(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        for chunk in chat_stream(8)[:4]:
            await wire.chunk(chunk)
        await asyncio.sleep(0.05)
        wire.reset()

    fake.answer = answer
    backend = await connect()
    async with await backend.send(call(stream=True)) as exchange:
        got, error = await read_until_broken(exchange)
    assert "connection lost" in error.reason
    assert got == b"".join(chat_stream(8)[:4])
    assert not exchange.observed.ended
    assert exchange.observed.error is not None


@pytest.mark.parametrize("cruelty", ["half chunk", "no last chunk", "garbage"])
async def test_a_stream_cut_short_is_broken_not_ended(
    fake: FakeServer, connect: Connect, cruelty: str
) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(chat_stream(1)[0])
        if cruelty == "half chunk":
            await wire.raw(b"ff\r\ndata: {")
        elif cruelty == "garbage":
            await wire.raw(b"\xff\x00 this is no chunk size\r\n")
            await asyncio.sleep(0.05)
        wire.hang_up()

    fake.answer = answer
    backend = await connect()
    with pytest.raises(UpstreamBroken):
        await read_all(await backend.send(call(stream=True)))


async def test_silence_within_a_stream_breaks_it_with_a_reason(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(chat_stream(1)[0])
        await fake.abort_event(request.rid).wait()

    fake.answer = answer
    backend = await connect(stall_seconds=0.2)
    sent = call(stream=True)
    with pytest.raises(UpstreamBroken, match=r"silent for 0\.2 s"):
        await read_all(await backend.send(sent))
    await eventually(lambda: sent.rid in fake.aborts())


async def test_silence_before_the_answer_is_no_stall_while_the_server_works(
    fake: FakeServer, connect: Connect
) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.5)
        await wire.json(chat_body())

    fake.answer = answer
    fake.running = 1
    backend = await connect(stall_seconds=0.1)
    assert (await backend.send(call())).status == 200


async def test_a_slow_reader_is_no_stall(fake: FakeServer, connect: Connect) -> None:
    fake.answer = streaming(chat_stream(4))
    backend = await connect(stall_seconds=0.1)
    async with await backend.send(call(stream=True)) as exchange:
        await anext(exchange)
        await asyncio.sleep(0.3)
        assert b"".join([chunk async for chunk in exchange]).endswith(DONE)


async def test_a_server_that_is_not_there_was_not_sent_anything(
    fake: FakeServer, connect: Connect, heard: Heard
) -> None:
    backend = await connect()
    await fake.stop()
    with pytest.raises(UpstreamUnreachable) as lost:
        await backend.send(call())
    assert not lost.value.sent
    await eventually(lambda: bool(heard.down))


async def test_a_server_that_dies_before_answering_was_sent_it(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        wire.reset()

    fake.answer = answer
    backend = await connect()
    with pytest.raises(UpstreamUnreachable) as lost:
        await backend.send(call())
    assert lost.value.sent


async def test_an_idle_connection_closed_by_the_server_is_retried_under_a_fresh_rid(
    fake: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def answer(request: Received, wire: Wire) -> None:
        if len(fake.posts()) == 2:
            wire.hang_up()  # the first request of a connection that was idle
        else:
            await wire.json(chat_body())

    fake.answer = answer
    backend = await connect(poll_seconds=30.0)
    await read_all(await backend.send(call()))
    sent = call()
    exchange = await backend.send(sent)
    assert exchange.status == 200
    await read_all(exchange)
    first, second, third = fake.posts()
    assert second.connection != third.connection
    assert second.rid == sent.rid
    assert third.rid == exchange.rid != sent.rid
    assert len(third.rid) == len(sent.rid)
    assert third.body.replace(third.rid.encode(), b"") == second.body.replace(second.rid.encode(), b"")
    await eventually(lambda: fake.aborts() == [sent.rid])
    assert first.rid not in fake.aborts()


async def test_a_fresh_connection_that_fails_is_not_retried(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        wire.hang_up()

    fake.answer = answer
    backend = await connect()
    await asyncio.gather(
        *(_expect_unreachable(backend.send(call())) for _ in range(3))
    )  # more than the polls left idle
    assert 3 <= len(fake.posts()) <= 4


async def _expect_unreachable(sending: Awaitable[object]) -> None:
    with pytest.raises(UpstreamUnreachable):
        await sending


async def test_a_request_that_runs_is_never_sent_twice(fake: FakeServer, connect: Connect) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        await wire.begin()
        wire.hang_up()

    fake.answer = answer
    backend = await connect()
    with pytest.raises(UpstreamUnreachable) as lost:
        await backend.send(call(stream=True))
    assert lost.value.sent
    assert len(fake.posts()) == 1


async def test_a_request_that_ran_for_a_while_on_an_old_connection_is_not_sent_again(
    fake: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "STALE_SECONDS", 0.05)

    async def answer(request: Received, wire: Wire) -> None:
        if len(fake.posts()) == 2:
            await asyncio.sleep(0.1)
            wire.reset()
        else:
            await wire.json(chat_body())

    fake.answer = answer
    backend = await connect(poll_seconds=30.0)
    await read_all(await backend.send(call()))
    with pytest.raises(UpstreamUnreachable) as lost:
        await backend.send(call())
    assert lost.value.sent
    assert len(fake.posts()) == 2


async def test_a_second_try_that_finds_nobody_does_not_forget_that_the_first_was_sent(
    fake: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def answer(request: Received, wire: Wire) -> None:
        if len(fake.posts()) == 2:
            await fake.stop()
        else:
            await wire.json(chat_body())

    fake.answer = answer
    backend = await connect(poll_seconds=30.0)
    await read_all(await backend.send(call()))
    with pytest.raises(UpstreamUnreachable) as lost:
        await backend.send(call())
    assert lost.value.sent


async def test_a_compressed_answer_passes_unwatched(fake: FakeServer, connect: Connect) -> None:
    packed = b"\x1f\x8b" + bytes(200)
    fake.answer = lambda request, wire: wire.whole(packed, extra="content-encoding: gzip\r\n")
    backend = await connect()
    exchange = await backend.send(call())
    assert await read_all(exchange) == packed
    assert (b"content-encoding", b"gzip") in exchange.headers
    assert exchange.observed.usage is None


async def test_generated_tokens_follow_the_stream(fake: FakeServer, connect: Connect) -> None:
    fake.answer = streaming(chat_stream(5), 0.01)
    backend = await connect()
    async with await backend.send(call(stream=True)) as exchange:
        seen = [exchange.observed.generated_tokens async for _ in exchange]
    assert seen[:6] == [0, 1, 2, 3, 4, 5]
    assert exchange.observed.generated_tokens == 5


async def test_several_tokens_an_event_are_counted_as_the_server_says(
    fake: FakeServer, connect: Connect
) -> None:
    fake.info = {"stream_interval": 4}
    fake.answer = streaming(chat_stream(5), 0.01)
    backend = await connect()
    exchange = await backend.send(call(stream=True))
    await read_all(exchange)
    assert exchange.observed.generated_tokens == 20


async def test_generate_is_watched_too(fake: FakeServer, connect: Connect) -> None:
    def part(count: int) -> bytes:
        meta = {
            "id": "x",
            "finish_reason": None,
            "prompt_tokens": 9,
            "completion_tokens": count,
            "cached_tokens": 2,
        }
        return event({"text": "a" * count, "output_ids": list(range(count)), "meta_info": meta})

    fake.answer = streaming([*(part(i) for i in range(1, 4)), DONE])
    backend = await connect()
    exchange = await backend.send(call("/generate", {"text": "hi"}, stream=True))
    await read_all(exchange)
    assert exchange.observed.usage == Usage(9, 3, 2)


async def test_the_path_of_the_backends_url_is_kept(fake: FakeServer, connect: Connect) -> None:
    backend = await connect(wait=False, spec={"url": f"{fake.url}/prefix"})
    await read_all(await backend.send(call(CHAT)))
    assert fake.posts()[0].target == f"/prefix{CHAT}"
