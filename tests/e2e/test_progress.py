"""`x-admission-progress: 1`: who waits is told how it stands, and nothing else about its answer changes."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.api import progress
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.e2e.refusing import PATIENCE, busy
from tests.fakes import FakeServer, Received, Wire, chat_body, chat_stream, error_event
from tests.proxies import Running, proxy_before
from tests.raw_http import Connection, chat, request
from tests.waiting import eventually

MESSAGES = "/v1/messages"
TOLD = ("x-admission-progress", "1")
COMMENT = re.compile(rb": queued position=(\d+) eta_seconds=(\d+\.\d)\n\n")


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """A second is long for a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "FIRST_SECONDS", 0.02)
        patch.setattr(progress, "LEAST_SECONDS", 0.02)
        patch.setattr(progress, "EVERY_SECONDS", 0.1)
        yield


async def waiting(
    proxy: Running, path: str = COMPLETIONS, body: dict[str, Any] | None = None, **patience: str
) -> Connection:
    """A client that streams, is told, and has to wait."""
    connection = await Connection.open(proxy.port)
    headers = [TOLD, *((PATIENCE, value) for value in patience.values())]
    await connection.send(request(body or ids(15_000, stream=True), path, headers=headers))
    return connection


async def rest(connection: Connection) -> bytes:
    """All that is still to come; fails unless it ends as HTTP says it must."""
    body = b""
    while data := await connection.chunk():
        body += data
    return body


def last_error(body: bytes) -> dict[str, Any]:
    """The error event that ends a stream of OpenAI's APIs."""
    *_, event, done, nothing = body.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    error: dict[str, Any] = json.loads(event.removeprefix(b"data: "))["error"]
    return error


# --- what it is told ------------------------------------------------------------------------------


async def test_who_waits_hears_where_it_stands_and_then_gets_the_answer_byte_for_byte(
    fake: FakeServer,
) -> None:
    async with busy(fake) as (proxy, held):
        async with await waiting(proxy) as client:
            head = await client.head()
            comments = [await client.chunk() for _ in range(3)]
            assert len(fake.posts()) == 1  # it is still here
            held.go.set()
            answer = await rest(client)
        assert head.status == 200
        assert head.header("content-type") == "text/event-stream; charset=utf-8"
        assert head.header("x-admission-lane") == "long"
        assert head.header("x-request-id")
        assert head.header("x-admission-wait-ms") is None  # nobody knows it yet
        assert all(COMMENT.fullmatch(comment) for comment in comments)
        told = b"".join(re.findall(rb": .*\n\n", answer))
        assert answer.removeprefix(told) == b"".join(await plain_stream(proxy))
        await eventually(lambda: proxy.metric("requests_total", lane="long", outcome="completed") == 2)


async def plain_stream(proxy: Running) -> list[bytes]:
    """What the same server streams to somebody who does not wait."""
    reply = await proxy.ask(ids(10, stream=True), COMPLETIONS)
    assert reply.header("x-admission-wait-ms")
    return [reply.body]


async def test_a_position_that_changes_is_told_and_the_figure_is_that_of_the_status(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, held):
        first = await waiting(proxy)
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        async with await waiting(proxy) as second:
            await second.head()
            assert (found := COMMENT.fullmatch(await second.chunk()))
            row = (await proxy.get("/admission/status")).json()["pools"][0]["queue"][1]
            assert (int(found[1]), row["position"]) == (1, 1)
            assert float(found[2]) == pytest.approx(row["predicted_wait_seconds"], rel=0.3)
            first.leave()
            async with asyncio.timeout(5):
                while (found := COMMENT.fullmatch(await second.chunk())) and found[1] == b"1":
                    pass
            assert found
            assert found[1] == b"0"
            held.go.set()
            await rest(second)


async def test_anthropics_clients_are_pinged(fake: FakeServer) -> None:
    body = {"model": "tiny", "max_tokens": 9, "stream": True}
    body["messages"] = [{"role": "user", "content": "word " * 14_000}]
    async with busy(fake) as (proxy, held):
        async with await waiting(proxy, MESSAGES, body) as client:
            await client.head()
            name, data, *_ = (await client.chunk()).split(b"\n")
            held.go.set()
            await rest(client)
        assert name == b"event: ping"
        ping = json.loads(data.removeprefix(b"data: "))
        assert (ping["type"], ping["state"], ping["position"]) == ("ping", "queued", 0)
        assert ping["eta_seconds"] > 0


async def test_who_was_told_hears_on_while_its_prompt_is_computed(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, held), await waiting(proxy) as client:
        await client.head()
        await client.chunk()
        fake.answer = silent = Held(fake, silent=True)
        held.go.set()
        async with asyncio.timeout(5):
            while not (said := await client.chunk()).startswith(b": prefilling eta_seconds="):
                assert COMMENT.fullmatch(said)
        silent.go.set()
        assert (await rest(client)).endswith(b"data: [DONE]\n\n")


async def test_a_server_that_says_it_is_full_changes_nothing(fake: FakeServer) -> None:
    asked = 0

    async def answer(_: Received, wire: Wire) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await wire.json({"object": "error", "message": "The request queue is full."}, 503)
            return
        await wire.begin()
        for chunk in chat_stream():
            await wire.chunk(chunk)
        await wire.end()

    fake.answer = answer
    async with proxy_before(fake) as proxy, await waiting(proxy, body=ids(10, stream=True)) as client:
        assert (await client.head()).status == 200
        assert (await rest(client)).startswith(b": queued position=0 ")
        assert asked == 2


# --- who is not told ------------------------------------------------------------------------------


async def test_who_goes_at_once_gets_the_backends_own_head(fake: FakeServer) -> None:
    chunks = chat_stream()

    async def answer(_: Received, wire: Wire) -> None:
        await asyncio.sleep(0.1)  # longer than the queue would be silent
        await wire.begin(extra="x-backend: yes\r\n")
        for chunk in chunks:
            await wire.chunk(chunk)
        await wire.end()

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True), headers=[TOLD])
    assert (reply.header("x-backend"), reply.body) == ("yes", b"".join(chunks))
    assert reply.header("x-admission-wait-ms")


@pytest.mark.parametrize(
    ("stream", "headers"), [(False, [TOLD]), (True, []), (True, [("x-admission-progress", "0")])]
)
async def test_nothing_is_sent_ahead_to_who_did_not_ask_or_does_not_stream(
    fake: FakeServer, stream: bool, headers: list[tuple[str, str]]
) -> None:
    async with busy(fake) as (proxy, held):
        asked = asyncio.create_task(proxy.ask(ids(15_000, stream=stream), COMPLETIONS, headers=headers))
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        await asyncio.sleep(0.1)
        held.go.set()
        reply = await asked
        assert reply.header("x-admission-wait-ms")
        assert b"queued" not in reply.body
        assert reply.header("content-type") == (
            "text/event-stream; charset=utf-8" if stream else "application/json"
        )


async def test_a_refusal_that_comes_at_once_keeps_its_status(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, _):
        reply = await proxy.ask(ids(15_000, stream=True), COMPLETIONS, headers=[TOLD, (PATIENCE, "1")])
        assert reply.status == 429
        assert reply.header("retry-after")


# --- ends that come after the 200 -----------------------------------------------------------------


async def test_a_later_refusal_is_an_error_event_that_says_when_to_come_back(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, _):
        async with await waiting(proxy, patience="1000") as client:
            assert (await client.head()).status == 200
            error = last_error(await rest(client))
        assert (error["code"], error["type"], error["status"]) == ("deadline", "rate_limit_error", 429)
        assert error["retry_after_s"] >= 1
        assert error["queue_position"] == 0
        await eventually(lambda: proxy.metric("requests_total", lane="long", outcome="refused") == 1)
        assert proxy.metric("refusals_total", reason="deadline") == 1
        assert len(fake.posts()) == 1


async def test_anthropics_error_event_ends_its_stream(fake: FakeServer) -> None:
    body = {"model": "tiny", "max_tokens": 9, "stream": True}
    body["messages"] = [{"role": "user", "content": "word " * 14_000}]
    async with busy(fake) as (proxy, _), await waiting(proxy, MESSAGES, body) as client:
        await client.head()
        proxy.app.gate.drain()
        *_, name, data, nothing, end = (await rest(client)).split(b"\n")
        assert (name, nothing, end) == (b"event: error", b"", b"")
        error = json.loads(data.removeprefix(b"data: "))
        assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
        assert error["error"]["status"] == 503
        await eventually(lambda: proxy.metric("refusals_total", reason="draining") == 1)


@pytest.mark.parametrize(
    ("kind", "status", "outcome"),
    [
        ("flat 500", 500, "failed"),
        ("flat 400", 400, "invalid"),
        ("early event", 500, "failed"),
        ("no stream", 502, "failed"),
        ("compressed", 502, "failed"),
        ("reset", 502, "failed"),
    ],
)
async def test_a_failure_of_the_server_is_an_error_event(
    fake: FakeServer, kind: str, status: int, outcome: str
) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        match kind.split():
            case ["flat", number]:
                await wire.json({"object": "error", "message": "no luck", "code": int(number)}, int(number))
            case ["early", _]:
                await wire.begin()
                await wire.chunk(error_event("no luck", 500))
                await wire.end()
            case ["no", _]:
                await wire.json(chat_body())
            case ["compressed"]:
                await wire.begin(extra="content-encoding: gzip\r\n")
                await wire.chunk(b"\x1f\x8b")
                await wire.end()
            case _:
                wire.reset()

    async with busy(fake) as (proxy, held):
        async with await waiting(proxy) as client:
            await client.head()
            await client.chunk()
            fake.answer = answer
            held.go.set()
            error = last_error(await rest(client))
        assert error["status"] == status
        assert ("no luck" in error["message"]) == (kind in ("flat 500", "flat 400", "early event"))
        await eventually(lambda: proxy.metric("requests_total", lane="long", outcome=outcome) == 1)


async def test_a_server_that_dies_in_mid_stream_ends_it_with_an_error_event(fake: FakeServer) -> None:
    async def answer(_: Received, wire: Wire) -> None:
        await wire.begin()
        await wire.chunk(chat_stream()[0])
        wire.reset()

    async with busy(fake) as (proxy, held):
        async with await waiting(proxy) as client:
            await client.head()
            fake.answer = answer
            held.go.set()
            assert last_error(await rest(client))["code"] == "upstream_broken"
        await eventually(lambda: proxy.metric("requests_total", lane="long", outcome="broken") == 1)


@pytest.mark.parametrize("reset", [False, True])
async def test_who_leaves_while_it_is_told_is_out_of_the_queue(fake: FakeServer, reset: bool) -> None:
    async with busy(fake) as (proxy, _):
        client = await waiting(proxy)
        await client.head()
        await client.chunk()
        client.leave(reset=reset)
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 0)
        await eventually(lambda: proxy.metric("disconnects_total", phase="queued") == 1)
        assert len(fake.posts()) == 1
        assert fake.aborts() == []


async def test_who_leaves_while_its_prompt_is_computed_has_it_aborted(fake: FakeServer) -> None:
    async with busy(fake) as (proxy, held):
        client = await waiting(proxy)
        await client.head()
        await client.chunk()
        fake.answer = silent = Held(fake, silent=True)
        held.go.set()
        await eventually(lambda: silent.running == 1)
        client.leave()
        await eventually(lambda: proxy.metric("disconnects_total", phase="prefilling") == 1)
        await eventually(lambda: silent.running == 0)
        await proxy.settled()
        assert fake.aborts() == [fake.posts()[1].rid]
