"""Reading bodies, answering, and noticing at once that a client left, at whatever step that is."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.api import asgi
from proxy.api.answers import Answer
from proxy.api.asgi import BodyTooLarge, ClientGone, Message, Watch, answer, read_body
from proxy.api.room import NoRoom, Room


class Client:
    """The receiving side of ASGI: says what it is given, then nothing until it leaves."""

    def __init__(self, *messages: Message) -> None:
        self._messages = deque(messages)
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.popleft()
        await self._gone.wait()
        return {"type": "http.disconnect"}


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


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


async def read(client: Client, room: Room | None = None) -> bytes:
    """A body of at most six bytes."""
    return await read_body({"headers": []}, client.receive, 6, (room or Room(100)).share())


# --- bodies ---------------------------------------------------------------------------------------


async def test_a_body_in_one_piece_and_one_in_many_are_the_same() -> None:
    whole = Client(piece(b"abcdef"))
    many = Client(piece(b"ab", more=True), piece(b"", more=True), piece(b"cd", more=True), piece(b"ef"))
    assert await read(whole) == b"abcdef"
    assert await read(many) == b"abcdef"


async def test_an_announced_length_over_the_limit_is_refused_before_a_byte_is_read() -> None:
    scope = {"headers": [(b"content-length", b"7")]}
    with pytest.raises(BodyTooLarge):
        await read_body(scope, Client().receive, 6, Room(100).share())


async def test_a_body_that_grows_over_the_limit_is_refused_when_it_does() -> None:
    with pytest.raises(BodyTooLarge):
        await read(Client(piece(b"abcdefg")))
    with pytest.raises(BodyTooLarge):
        await read(Client(piece(b"abcdefg", more=True)))
    with pytest.raises(BodyTooLarge):
        await read(Client(piece(b"abcdef", more=True), piece(b"g", more=True)))


async def test_all_bodies_together_hold_no_more_than_there_is_room_for() -> None:
    room = Room(10)
    first, second = room.share(), room.share()
    scope: dict[str, Any] = {"headers": []}
    assert await read_body(scope, Client(piece(b"abc", more=True), piece(b"def")).receive, 6, first)
    with pytest.raises(NoRoom):
        await read_body(scope, Client(piece(b"abcd", more=True), piece(b"e")).receive, 6, second)
    assert room.held_bytes == 10
    second.drop()
    first.drop()
    first.drop()
    assert room.held_bytes == 0
    assert await read(Client(piece(b"abcdef")), room)


async def test_a_client_that_leaves_while_it_sends_is_gone() -> None:
    for client in (Client(), Client(piece(b"ab", more=True))):
        client.leave()
        with pytest.raises(ClientGone):
            await read(client)


async def test_silence_while_a_body_is_due_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.01)
    for client in (Client(), Client(piece(b"ab", more=True))):
        with pytest.raises(TimeoutError):
            await read(client)


async def test_an_answer_is_json_of_known_length_with_its_own_headers() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await answer(send, Answer(429, b"{}", ((b"retry-after", b"3"),)), "id-1")
    assert sent == [
        {
            "type": "http.response.start",
            "status": 429,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"2"),
                (b"retry-after", b"3"),
                (b"x-request-id", b"id-1"),
            ],
        },
        {"type": "http.response.body", "body": b"{}"},
    ]


# --- the watch ------------------------------------------------------------------------------------


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
