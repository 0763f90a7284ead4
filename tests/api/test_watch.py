"""Noticing at once that a client left, at whatever step that is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.api.asgi import ClientGone, Watch
from tests.api.clients import Client, piece


async def settled() -> None:
    """Every callback that is due has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def left_behind() -> set[asyncio.Task[Any]]:
    await settled()
    others = asyncio.all_tasks()
    me = asyncio.current_task()
    assert me is not None
    return others - {me}


async def watched(client: Client, work: Callable[[], Awaitable[None]]) -> None:
    async with Watch(client.receive):
        await work()


async def test_nothing_happens_to_a_block_whose_client_stays() -> None:
    client = Client()
    async with Watch(client.receive) as watch:
        await asyncio.sleep(0.001)
    assert not watch.gone
    assert not await left_behind()


async def test_a_client_that_leaves_interrupts_whatever_is_waited_for() -> None:
    client = Client()
    asyncio.get_running_loop().call_later(0.001, client.leave)
    with pytest.raises(ClientGone):
        await watched(client, lambda: asyncio.sleep(10))
    assert not await left_behind()


async def test_more_of_the_body_is_no_departure() -> None:
    client = Client(piece(b"late", more=True), piece(b"later"))
    async with Watch(client.receive) as watch:
        await settled()
    assert not watch.gone


async def test_who_left_before_the_block_is_noticed_at_its_first_wait() -> None:
    client, reached = Client(), []
    client.leave()

    async def work() -> None:
        reached.append("before")
        await asyncio.sleep(0)
        reached.append("after")

    with pytest.raises(ClientGone):
        await watched(client, work)
    assert reached == ["before"]


async def test_a_departure_leaves_no_cancellation_over_that_would_strike_the_cleaning_up() -> None:
    client = Client()
    client.leave()
    with pytest.raises(ClientGone):
        await watched(client, lambda: asyncio.sleep(10))
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_leaving_after_the_last_wait_changes_nothing() -> None:
    client = Client()
    async with Watch(client.receive) as watch:
        await settled()
        client.leave()
    assert not watch.gone
    await settled()
    assert not await left_behind()


async def test_an_error_inside_gives_way_to_the_departure_that_came_with_it() -> None:
    client = Client()
    client.leave()

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            raise ValueError("made of the cancellation") from None

    with pytest.raises(ClientGone):
        await watched(client, work)
    await asyncio.sleep(0)


async def test_an_error_inside_passes_when_nobody_left() -> None:
    with pytest.raises(ValueError, match="ours"):
        async with Watch(Client().receive):
            raise ValueError("ours")
    assert not await left_behind()


async def test_a_cancellation_from_outside_stays_one() -> None:
    task = asyncio.create_task(watched(Client(), lambda: asyncio.sleep(10)))
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await left_behind()


@pytest.mark.parametrize("later", [0, 1, 2, 3])
async def test_a_cancellation_from_outside_is_not_lost_in_a_departure(later: int) -> None:
    client = Client()
    task = asyncio.create_task(watched(client, lambda: asyncio.sleep(10)))
    await settled()
    client.leave()
    for _ in range(later):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    await settled()
    assert task.done()
    assert task.cancelled() or isinstance(task.exception(), ClientGone)
    assert task.cancelled() or not cancelled
    assert not await left_behind()


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("work_steps", [0, 1, 2, 5])
async def test_at_whatever_step_a_client_leaves_the_block_either_ends_or_is_told(
    steps: int, work_steps: int
) -> None:
    client, done = Client(), []

    async def leave() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        client.leave()

    async def handle() -> str:
        try:
            async with Watch(client.receive):
                for _ in range(work_steps):
                    await asyncio.sleep(0)
                done.append(True)
        except ClientGone:
            await asyncio.sleep(0)  # cleaning up may wait
            return "gone"
        await asyncio.sleep(0)
        return "done"

    leaving = asyncio.create_task(leave())
    outcome = await asyncio.create_task(handle())
    await leaving
    assert outcome in ("done", "gone")
    assert done or outcome == "gone"
    assert not await left_behind()


async def test_a_watch_inside_a_timeout_leaves_the_timeout_its_own_cancellation() -> None:
    async def in_time() -> None:
        async with asyncio.timeout(0.01):
            await watched(Client(), lambda: asyncio.sleep(10))

    with pytest.raises(TimeoutError):
        await in_time()
    assert not await left_behind()
