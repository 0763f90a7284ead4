"""Nothing piles up: not bodies, objects, descriptors or tasks, however clients and servers behave."""

import asyncio
import gc
import logging
import random
import weakref
from pathlib import Path

import pytest

import proxy.app
from proxy.upstream.exchange import Exchange
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer, Received, Wire, chat_body, chat_stream
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Connection, ask, chat, request
from tests.waiting import eventually


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_body_is_held_no_longer_than_until_its_answer_begins(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(fake)
    fake.answer = held
    exchanges: list[Exchange] = []
    opened = Exchange.open

    async def open_and_note(exchange: Exchange) -> None:
        exchanges.append(exchange)
        await opened(exchange)

    monkeypatch.setattr(Exchange, "open", open_and_note)
    async with proxy_before(fake) as running:
        asked = asyncio.create_task(running.ask(chat("word " * 3000, stream=True)))
        await eventually(lambda: held.running == 1)
        await eventually(lambda: running.app.room.held_bytes == 0)
        assert exchanges[0].call.body == b""
        assert running.app.gate.open_tickets == 1
        held.go.set()
        assert (await asked).whole
        await running.settled()


async def test_bodies_together_take_no_more_than_there_is_room_for(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.app, "LARGEST_BODIES", 1)
    body = request(chat("x" * 1200)).partition(b"\r\n\r\n")[2]
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with proxy_before(fake, max_body_bytes=2000) as running:
        first = await Connection.open(running.port)
        await first.send(head + body[:-1])
        await eventually(lambda: running.app.room.held_bytes > 1000)
        for path in (CHAT, "/tokenize", "/admission/explain"):
            refused = await running.ask(body, path)
            assert (refused.status, refused.header("x-admission-reason")) == (429, "queue_full")
            assert refused.header("retry-after")
        first.leave(reset=True)
        await eventually(lambda: running.app.room.held_bytes == 0)
        assert (await running.ask(body)).status == 200
        await running.settled()


async def visit(running: Running, number: int, dice: random.Random) -> None:
    """One client of the kind that `number` says."""
    match number % 6:
        case 0:
            await running.ask(chat("x" * dice.randint(1, 3000)))
        case 1:
            await running.ask(chat(stream=True, model=f"m{number}"))
        case 2:
            await running.ask(b"nonsense")
        case 3:
            connection = await Connection.open(running.port)
            await connection.send(request(chat(stream=True)))
            await asyncio.sleep(dice.random() * 0.005)
            connection.leave(reset=True)
        case 4:
            await running.ask(ids(dice.randint(1, 9000), stream=True), COMPLETIONS)
        case _:
            await running.get(f"/v1/models/m{number}")


async def test_two_thousand_requests_leave_no_objects_descriptors_or_tasks(
    fake: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="proxy")  # pytest keeps every line that is logged
    dice = random.Random(5)

    async def answer(received: Received, wire: Wire) -> None:
        if dice.random() < 0.02:
            wire.reset()
        elif received.json().get("stream"):
            await wire.begin()
            for chunk in chat_stream(3):
                await wire.chunk(chunk)
            await wire.end()
        else:
            await wire.json(chat_body())

    fake.answer = answer
    async with proxy_before(fake) as running:

        async def visits(first: int, count: int) -> tuple[int, int, int]:
            """Objects, descriptors and tasks that are left after so many."""
            for start in range(first, first + count, 20):
                await asyncio.gather(*(visit(running, start + n, dice) for n in range(20)))
            await eventually(lambda: not running.connections())
            await running.settled(15)
            fake.requests.clear()
            fake.aborted.clear()
            gc.collect()
            return len(gc.get_objects()), descriptors(), len(asyncio.all_tasks())

        await visits(0, 500)
        objects, files, tasks = await visits(500, 500)
        growths: list[int] = []
        for first in (1000, 1500, 2000):
            objects_after, files_after, tasks_after = await visits(first, 500)
            growths.append(objects_after - objects)
            objects = objects_after
        # maps of names fill up and are emptied again; what stays of each request would show each time
        assert min(growths) < 500
        assert files_after <= files + 4
        assert tasks_after <= tasks + 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_exchange_is_forgotten_without_the_help_of_a_collection(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    seen: weakref.WeakSet[Exchange] = weakref.WeakSet()
    opened = Exchange.open

    async def open_and_note(exchange: Exchange) -> None:
        seen.add(exchange)
        await opened(exchange)

    async def answer(_: Received, wire: Wire) -> None:
        if stream:
            await wire.begin()
            for chunk in chat_stream(3):
                await wire.chunk(chunk)
            await wire.end()
        else:
            await wire.json(chat_body())

    monkeypatch.setattr(Exchange, "open", open_and_note)
    fake.answer = answer
    async with proxy_before(fake) as running:
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                assert (await running.ask(chat(stream=stream))).status == 200
            await running.settled()
            assert len(seen) <= 1
        finally:
            gc.enable()


async def test_a_stampede_while_the_proxy_drains_ends_in_refusals(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as running:
        streaming = asyncio.create_task(running.ask(chat(stream=True)))
        await eventually(lambda: held.running == 1)
        asked = [asyncio.create_task(ask(running.port, chat())) for _ in range(100)]
        await asyncio.sleep(0.01)
        running.app.gate.drain()
        held.go.set()
        replies = [*await asyncio.gather(*asked), *[await running.ask(chat()) for _ in range(20)]]
        assert {reply.status for reply in replies} <= {200, 503}
        assert [reply.status for reply in replies[100:]] == [503] * 20
        assert (await streaming).whole
        await running.settled()
