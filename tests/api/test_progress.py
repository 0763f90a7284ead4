"""Telling a client how it stands costs nobody else anything, and never comes in the answer's way."""

import asyncio
from collections.abc import Iterator

import pytest

from proxy.api import progress
from proxy.api.asgi import Message
from proxy.api.outgoing import Outgoing
from proxy.api.progress import Progress
from proxy.api.ticket import Ticket
from proxy.tokens.shape import Api
from tests.api.gates import Setup, request
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "FIRST_SECONDS", 0.01)
        patch.setattr(progress, "LEAST_SECONDS", 0.01)
        yield


class Sent:
    """An ASGI `send` that keeps what it was given; while `stuck`, a client that does not read."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.messages: list[Message] = []
        self.stuck = stuck
        self.blocked = 0

    async def __call__(self, message: Message) -> None:
        if self.stuck and self.messages:
            self.blocked += 1
            await asyncio.Event().wait()
        self.messages.append(message)


@pytest.fixture
async def setup() -> Setup:
    return Setup()


def queued(setup: Setup, rid: str = "b", prompt_tokens: int = 15_000) -> Ticket:
    """A ticket that waits behind one that holds most of the pool."""
    if not setup.gate.open_tickets:
        setup.gate.first_token(setup.gate.submit(request("a", 15_000)))
    ticket = setup.gate.submit(request(rid, prompt_tokens))
    assert ticket.decision is None
    return ticket


async def test_nothing_is_sent_ahead_of_a_decision_that_has_just_been_made(setup: Setup) -> None:
    ticket, sent = queued(setup), Sent()
    out = Outgoing(Api.CHAT, sent, "r")
    async with Progress(setup.gate).told(ticket, out):
        setup.gate.drain()  # decides it; the handler would go on only at the loop's next turn
        assert ticket.decision is not None
        await asyncio.sleep(0.05)
    assert sent.messages == []
    assert not out.committed
    setup.gate.close()


async def test_who_does_not_read_is_decided_like_everybody_else(setup: Setup) -> None:
    ticket, sent = queued(setup), Sent(stuck=True)
    out = Outgoing(Api.CHAT, sent, "r")
    async with asyncio.timeout(5), Progress(setup.gate).told(ticket, out):
        waiter = asyncio.create_task(ticket.decided())
        await eventually(lambda: sent.blocked > 0)
        setup.gate.drain()
        await waiter
    assert [message["type"] for message in sent.messages] == ["http.response.start"]
    setup.gate.close()


async def test_no_comment_comes_after_the_wait(setup: Setup) -> None:
    ticket, sent = queued(setup), Sent()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "EVERY_SECONDS", 0.0)
        async with Progress(setup.gate).told(ticket, Outgoing(Api.CHAT, sent, "r")):
            await eventually(lambda: len(sent.messages) > 3)
        count = len(sent.messages)
        await asyncio.sleep(0.05)
        assert len(sent.messages) == count
    setup.gate.close()


async def test_a_pool_that_is_taken_away_under_it_is_no_error(setup: Setup) -> None:
    ticket, sent = setup.gate.submit(request("a", 15_000)), Sent()
    assert ticket.decision is not None
    out = Outgoing(Api.CHAT, sent, "r")
    async with Progress(setup.gate).told(ticket, out):
        await eventually(lambda: len(sent.messages) == 2)
        assert sent.messages[1]["body"].startswith(b": prefilling ")
        setup.gate.pool_gone("b")
        await asyncio.sleep(0.05)
    assert "a" not in setup.controller.jobs
    setup.gate.close()


async def test_an_error_in_it_is_not_lost(setup: Setup) -> None:
    ticket = queued(setup)

    async def send(_: Message) -> None:
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        async with Progress(setup.gate).told(ticket, Outgoing(Api.CHAT, send, "r")):
            await asyncio.sleep(0.05)
    setup.gate.close()


async def test_the_more_clients_are_told_the_less_often_each(setup: Setup) -> None:
    told = Progress(setup.gate)
    ticket = queued(setup)
    async with asyncio.TaskGroup() as group:
        enough = asyncio.Event()

        async def one() -> None:
            async with told.told(ticket, Outgoing(Api.CHAT, Sent(), "r")):
                await enough.wait()

        for _ in range(500):
            group.create_task(one())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        looks_a_second = 500 / told.interval_seconds
        enough.set()
    assert looks_a_second <= progress.MOST_A_SECOND
    assert told.interval_seconds == progress.LEAST_SECONDS
    setup.gate.close()
