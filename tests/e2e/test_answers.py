"""Every row of the contract's table of answers, as a client sees it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.backend_spec import BackendSpec
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer, Received, Wire, chat_body, chat_stream, error_event
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Reply, chat
from tests.waiting import eventually

MESSAGES = "/v1/messages"
PATIENCE = "x-request-timeout-ms"


@asynccontextmanager
async def busy(fake: FakeServer, **settings: Any) -> AsyncIterator[tuple[Running, Held]]:
    """A pool of 20,000 tokens of which one request holds 15,000 until it is let go."""
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake, **settings) as proxy:
        first = asyncio.create_task(proxy.ask(ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        await eventually(lambda: proxy.app.gate.controller.lines["b0"].pool.backlog_tokens == 0)
        try:
            yield proxy, held
        finally:
            held.go.set()
            reply = await first
        assert reply.whole
        await proxy.settled()


def check_refusal(reply: Reply, status: int, reason: str, *, retry: bool = True) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert reply.status == status
    assert reply.whole
    assert reply.header("content-type") == "application/json"
    assert reply.header("x-admission-reason") == reason
    assert reply.header("x-request-id")
    assert reply.header("x-admission-lane") is None
    after = reply.header("retry-after")
    assert (after is not None) == retry
    if after is not None:
        assert 1 <= int(after) <= 60
    return error


# --- admitted -------------------------------------------------------------------------------------


async def test_an_admitted_request_gets_the_backends_answer_and_three_headers_more(fake: FakeServer) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.whole(
            b'{"odd":  "spacing"}', 200, extra="x-backend: yes\r\nset-cookie: a\r\nset-cookie: b\r\n"
        )

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(), headers=[("x-request-id", "mine-1")])
    assert reply.status == 200
    assert reply.body == b'{"odd":  "spacing"}'
    assert reply.header("x-backend") == "yes"
    assert [value for name, value in reply.headers if name == "set-cookie"] == ["a", "b"]
    assert reply.header("x-admission-lane") == "short"
    assert int(reply.header("x-admission-wait-ms") or "-1") >= 0
    assert reply.header("x-request-id") == "mine-1"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 504])
async def test_the_backends_own_refusals_pass_unchanged(fake: FakeServer, status: int) -> None:
    flat = {"object": "error", "message": "no", "type": "BadRequest", "param": None, "code": status}
    fake.answer = lambda _, wire: wire.json(flat, status)
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat())
        assert (reply.status, reply.json()) == (status, flat)
        await proxy.settled()


async def test_headers_that_only_the_proxy_may_say_are_taken_from_a_backend(fake: FakeServer) -> None:
    forged = "x-request-id: theirs\r\nx-admission-lane: giant\r\nx-admission-wait-ms: 9\r\n"
    fake.answer = lambda _, wire: wire.whole(b"{}", extra=forged)
    async with proxy_before(fake) as proxy:
        for path, method in ((CHAT, "POST"), ("/tokenize", "POST")):
            reply = await proxy.ask(chat(), path, method=method, headers=[("x-request-id", "ours")])
            assert reply.header("x-request-id") == "ours"
        assert (await proxy.ask(chat())).header("x-admission-lane") == "short"


async def test_two_requests_of_one_name_are_two_requests(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        same = [("x-request-id", "same")]
        asked = [asyncio.create_task(proxy.ask(chat(), headers=same)) for _ in range(2)]
        await eventually(lambda: held.running == 2)
        held.go.set()
        replies = await asyncio.gather(*asked)
        assert [reply.header("x-request-id") for reply in replies] == ["same", "same"]
        assert len({request.rid for request in fake.posts()}) == 2
        await proxy.settled()


# --- 429 ------------------------------------------------------------------------------------------


async def test_a_wait_longer_than_allowed_is_refused_at_once_with_the_figures(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, _):
        reply = await proxy.ask(ids(15_000), COMPLETIONS, headers=[(PATIENCE, "1")])
        error = check_refusal(reply, 429, "would_miss_deadline")
        assert error["type"] == "rate_limit_error"
        assert error["code"] == "would_miss_deadline"
        assert error["predicted_wait_s"] > 0
        assert error["needed_tokens"] > 15_000
        assert 0 < error["free_tokens"] < 15_000
        assert error["queue_position"] == 0
        assert len(fake.posts()) == 1


async def test_the_same_refusal_in_anthropics_shape(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, _):
        body = {
            "model": "tiny",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": "word " * 12_000}],
        }
        reply = await proxy.ask(body, MESSAGES, headers=[(PATIENCE, "1")])
        check_refusal(reply, 429, "would_miss_deadline")
        assert reply.json()["type"] == "error"
        assert reply.json()["error"]["type"] == "rate_limit_error"


async def test_a_full_queue_refuses(fake: FakeServer) -> None:
    async with busy(fake, max_queue_requests=1) as (proxy, held):
        second = asyncio.create_task(proxy.ask(ids(15_000), COMPLETIONS))
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        error = check_refusal(await proxy.ask(ids(15_000), COMPLETIONS), 429, "queue_full")
        assert error["code"] == "queue_full"
        held.go.set()
        assert (await second).status == 200


async def test_a_burst_of_refusals_is_told_to_come_back_at_different_times(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, _):
        patience = [(PATIENCE, "1")]
        replies = await asyncio.gather(
            *(proxy.ask(ids(15_000), COMPLETIONS, headers=patience) for _ in range(40))
        )
        honest = [check_refusal(r, 429, "would_miss_deadline")["retry_after_s"] for r in replies]
        assert len(set(honest)) > 5
        for reply, seconds in zip(replies, honest, strict=True):
            assert (reply.header("x-should-retry") == "false") == (seconds > 60)


async def test_who_waited_as_long_as_it_may_is_refused_then(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, _):
        started = asyncio.get_running_loop().time()
        reply = await proxy.ask(ids(15_000), COMPLETIONS, headers=[(PATIENCE, "1000")])
        waited = asyncio.get_running_loop().time() - started
        check_refusal(reply, 429, "deadline")
        assert 0.9 < waited < 2.0


# --- 400, 503 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [COMPLETIONS, "/generate"])
async def test_what_can_never_fit_is_refused_for_good(fake: FakeServer, path: str) -> None:
    fake.pool_tokens = 20_000
    async with proxy_before(fake) as proxy:
        body = ids(25_000) if path == COMPLETIONS else {"input_ids": [7] * 25_000}
        error = check_refusal(await proxy.ask(body, path), 400, "context_length_exceeded", retry=False)
        assert error["type"] == "invalid_request_error"
        assert error["code"] == "context_length_exceeded"
        assert "25000" in error["message"]
        assert str(error["limit_tokens"]) in error["message"]
        reply = await proxy.ask(body, path)
        assert reply.header("x-should-retry") == "false"
        assert fake.posts() == []


async def test_without_a_backend_everything_that_needs_one_is_refused_for_now() -> None:
    nowhere = BackendSpec("http://127.0.0.1:1", "nowhere")
    async with proxy_before(nowhere, wait=False) as proxy:
        error = check_refusal(await proxy.ask(chat()), 503, "no_backend")
        assert error["code"] == "no_backend"
        anthropic = await proxy.ask({"model": "m", "max_tokens": 5, "messages": chat()["messages"]}, MESSAGES)
        check_refusal(anthropic, 503, "no_backend")
        assert anthropic.json()["error"]["type"] == "overloaded_error"
        check_refusal(await proxy.get("/v1/models"), 503, "no_backend")
        check_refusal(await proxy.ask(chat(), "/v1/messages/count_tokens"), 503, "no_backend")
        await proxy.settled()


async def test_a_draining_proxy_refuses_the_queued_and_the_new_and_ends_what_runs(
    fake: FakeServer,
) -> None:
    async with busy(fake) as (proxy, _):
        queued = asyncio.create_task(proxy.ask(ids(15_000), COMPLETIONS))
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        proxy.app.gate.drain()
        check_refusal(await queued, 503, "draining")
        check_refusal(await proxy.ask(chat()), 503, "draining")
        assert (await proxy.get("/ready")).status == 503
        assert (await proxy.get("/livez")).status == 200


# --- the backend fails ----------------------------------------------------------------------------


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
