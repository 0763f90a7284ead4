"""Clients that reset their connections, at any moment, leave nothing of theirs in memory."""

import asyncio
import gc

import pytest

from proxy.api.connection import BoundedProtocol
from tests.chaos import faults
from tests.fakes import FakeServer
from tests.proxies import proxy_before
from tests.raw_http import Connection, chat, request
from tests.waiting import eventually


def protocols() -> int:
    gc.collect()
    return sum(type(thing) is BoundedProtocol for thing in gc.get_objects())


@pytest.mark.parametrize("moment", ["idle", "in the head", "in the body", "after an answer", "in an answer"])
async def test_a_connection_that_was_reset_is_forgotten_at_once(fake: FakeServer, moment: str) -> None:
    fake.answer = faults.drip
    before = protocols()
    whole = request(chat(stream=True))
    async with proxy_before(fake) as proxy:

        async def visit() -> None:
            connection = await Connection.open(proxy.port)
            match moment:
                case "in the head":
                    await connection.send(whole[:30])
                case "in the body":
                    await connection.send(whole[:-5])
                case "after an answer":
                    await connection.send(request(method="GET", path="/livez"))
                    await connection.reply()
                case "in an answer":
                    await connection.send(whole)
                    await connection.head()
            await asyncio.sleep(0.01)
            connection.leave(reset=True)

        await asyncio.gather(*(visit() for _ in range(10)))
        await eventually(lambda: not proxy.connections())
        await proxy.settled(15)
        await eventually(lambda: protocols() <= before)
