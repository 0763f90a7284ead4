"""Clients leave whenever they like: every token comes back, once, and the server is told to stop."""

import asyncio
import random
from typing import Any

import pytest

from proxy.admission.job import State
from proxy.admission.types import Request
from proxy.tokens.shape import Api
from proxy.tokens.sized import Sized
from tests.api.clients import Client, piece
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer, Received, Wire, chat_stream
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Connection, chat, request
from tests.waiting import eventually

PHASES = ("reading", "queued", "slicing", "prefilling", "streaming")


async def leaver(proxy: Running, body: dict[str, Any], path: str = CHAT) -> Connection:
    """A client that has sent its request and will not stay."""
    connection = await Connection.open(proxy.port)
    await connection.send(request(body, path))
    return connection


async def check_left(proxy: Running, phase: str, times: int = 1) -> None:
    await eventually(lambda: proxy.metric("disconnects_total", phase=phase) == times)
    await proxy.settled()
    assert [proxy.metric("disconnects_total", phase=other) for other in PHASES if other != phase] == [0] * 4


@pytest.mark.parametrize("reset", [False, True])
async def test_who_leaves_the_queue_was_never_at_the_server(fake: FakeServer, reset: bool) -> None:
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        first = asyncio.create_task(proxy.ask(ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        second = await leaver(proxy, ids(15_000), COMPLETIONS)
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        second.leave(reset=reset)
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 0)
        held.go.set()
        assert (await first).whole
        await check_left(proxy, "queued")
        assert len(fake.posts()) == 1
        assert fake.aborts() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_while_its_prompt_is_computed_has_it_aborted(fake: FakeServer, stream: bool) -> None:
    held = Held(fake, silent=True)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        client = await leaver(proxy, chat(stream=stream))
        await eventually(lambda: held.running == 1)
        client.leave()
        await eventually(lambda: held.running == 0)
        await check_left(proxy, "prefilling")
        assert fake.aborts() == [fake.posts()[0].rid]
        assert proxy.metric("aborts_total") == 1


async def test_who_leaves_a_stream_has_it_aborted(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        client = await leaver(proxy, chat(stream=True))
        await client.head()
        await client.chunk()
        client.leave()
        await eventually(lambda: held.running == 0)
        await check_left(proxy, "streaming")
        assert fake.aborts() == [fake.posts()[0].rid]


async def test_who_leaves_between_two_slices_of_its_prompt_is_not_sent_at_all(fake: FakeServer) -> None:
    slices = asyncio.Event()

    async def answer(received: Received, wire: Wire) -> None:
        if received.target == "/v1/tokenize":
            await wire.json({"tokens": [5] * 30_000, "count": 30_000})
            return
        await slices.wait()
        await wire.json({"text": "", "meta_info": {"cached_tokens": 0, "finish_reason": {"type": "length"}}})

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        client = await leaver(proxy, chat("word " * 30_000))
        jobs = proxy.app.gate.controller.jobs
        await eventually(lambda: any(job.slice_ends for job in jobs.values()))
        client.leave()
        await eventually(lambda: proxy.metric("disconnects_total", phase="slicing") == 1)
        assert [job.state for job in jobs.values()] == [State.DRAINING]
        slices.set()
        await check_left(proxy, "slicing")
        assert {received.target for received in fake.posts()} == {"/v1/tokenize", "/generate"}


async def test_who_left_while_its_body_was_counted_asks_for_no_place(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, counting = asyncio.Event(), asyncio.Event()
    async with proxy_before(fake) as proxy:
        size = proxy.app.sizer.size

        async def size_later(api: Api, body: bytes) -> Sized:
            counting.set()
            await counted.wait()
            return await size(api, body)

        monkeypatch.setattr(proxy.app.sizer, "size", size_later)
        client = await leaver(proxy, chat())
        await counting.wait()
        client.leave()
        await eventually(lambda: not proxy.connections())
        counted.set()
        await check_left(proxy, "reading")
        assert fake.posts() == []


# --- in the very step of a decision ---------------------------------------------------------------


def scope_of(path: str = CHAT) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }


class Sink:
    """The sending side of ASGI, which nobody reads."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("steps_between", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("leaves_first", [False, True])
async def test_leaving_in_the_step_of_the_decision_gives_everything_back(
    fake: FakeServer, steps_between: int | None, leaves_first: bool
) -> None:
    fake.pool_tokens = 20_000
    fake.answer = Held(fake)
    async with proxy_before(fake) as proxy:
        gate = proxy.app.gate
        blocker = gate.submit(Request("blocker", 15_000, max_tokens=100, model="tiny"))
        body = request(ids(15_000)).partition(b"\r\n\r\n")[2]
        client, sink = Client(piece(body)), Sink()
        serving = asyncio.create_task(proxy.app(scope_of(COMPLETIONS), client.receive, sink.send))
        await eventually(lambda: len(gate.controller.lines["b0"]) == 1)

        events = [lambda: gate.finish(blocker, completed=True), client.leave]
        for event in reversed(events) if leaves_first else events:
            event()
            for _ in range(steps_between or 0):
                await asyncio.sleep(0)
        await serving
        assert sink.messages == []
        await proxy.settled()
        assert proxy.metric("aborts_total") == len(fake.aborts()) <= 1
        assert sum(proxy.metric("disconnects_total", phase=phase) for phase in PHASES) == 1


@pytest.mark.parametrize("leaves_first", [False, True])
async def test_leaving_in_the_step_of_a_refusal_is_a_departure_or_a_refusal(
    fake: FakeServer, leaves_first: bool
) -> None:
    fake.pool_tokens = 20_000
    async with proxy_before(fake) as proxy:
        gate = proxy.app.gate
        blocker = gate.submit(Request("blocker", 15_000, max_tokens=100, model="tiny"))
        body = request(ids(15_000)).partition(b"\r\n\r\n")[2]
        client, sink = Client(piece(body)), Sink()
        serving = asyncio.create_task(proxy.app(scope_of(COMPLETIONS), client.receive, sink.send))
        await eventually(lambda: len(gate.controller.lines["b0"]) == 1)
        events = [gate.drain, client.leave]
        for event in reversed(events) if leaves_first else events:
            event()
        await serving
        gate.finish(blocker, completed=True)
        await proxy.settled()


# --- many at once ---------------------------------------------------------------------------------


async def test_a_thousand_quick_visitors_leave_nothing_behind(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:

        async def visit(number: int) -> None:
            connection = await Connection.open(proxy.port)
            if number % 4:
                data = request(chat(stream=True))
                await connection.send(data[: len(data) * (number % 4) // 3])
            connection.leave(reset=number % 2 == 0)

        for start in range(0, 1000, 50):
            await asyncio.gather(*(visit(number) for number in range(start, start + 50)))
        await eventually(lambda: not proxy.connections())
        await proxy.settled(15)
        assert (await proxy.ask(chat())).status == 200


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_leave_at_any_moment_under_contention_leave_nothing_behind(
    fake: FakeServer, seed: int
) -> None:
    dice = random.Random(seed)
    fake.pool_tokens = 20_000

    async def answer(received: Received, wire: Wire) -> None:
        aborted = fake.abort_event(received.rid)
        await asyncio.sleep(dice.random() * 0.03)
        await wire.begin()
        for chunk in chat_stream(6):
            if not aborted.is_set():
                await wire.chunk(chunk)
                await asyncio.sleep(dice.random() * 0.01)
        await wire.end()

    fake.answer = answer
    async with proxy_before(fake) as proxy:

        async def visit() -> None:
            await asyncio.sleep(dice.random() * 0.5)
            connection = await leaver(proxy, ids(dice.randint(100, 9000), stream=True), COMPLETIONS)
            if dice.random() < 0.3:
                await connection.reply()
            else:
                await asyncio.sleep(dice.random() * 0.1)
            connection.leave(reset=dice.random() < 0.5)

        await asyncio.gather(*(visit() for _ in range(80)))
        await eventually(lambda: not proxy.connections())
        await proxy.settled(15)
        total = sum(
            proxy.metric("requests_total", lane=lane, outcome=outcome)
            for lane in ("short", "long", "giant", "none")
            for outcome in ("completed", "disconnected", "refused", "failed", "broken", "invalid")
        )
        assert total == 80
