"""Every row of the contract's table of answers, as a client sees it."""

import asyncio

import pytest

from proxy.backend_spec import BackendSpec
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.e2e.refusing import PATIENCE, busy, check_refusal
from tests.fakes import FakeServer, Received, Wire
from tests.proxies import proxy_before
from tests.raw_http import CHAT, chat
from tests.waiting import eventually

MESSAGES = "/v1/messages"


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
