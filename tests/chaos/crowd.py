"""Clients of every kind that come at once, and what each of them got."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults import FAULT_HEADER
from tests.e2e.holding import COMPLETIONS, ids
from tests.proxies import Running
from tests.raw_http import CHAT, Connection, Reply, chat, request

MESSAGES = "/v1/messages"
ANSWER_SECONDS = 10.0


@dataclass
class Client:
    """`reply` is None for one that left before its answer."""

    fault: str
    stream: bool
    reply: Reply | None = None
    cut: bool = False  # the connection ended without any answer

    def has_an_answer(self) -> bool:
        """A whole answer, or one that shows that it is not: an event of the failure, or a cut body.

        A stream of events always ends in order. Nobody is left with a bare closed connection.
        """
        reply = self.reply
        if reply is None or self.cut:
            return False
        if reply.status != 200:
            return reply.whole
        events = reply.header("content-type") == "text/event-stream"
        return reply.whole or not (events and reply.header("content-length") is None)


def body_of(number: int) -> tuple[str, dict[str, Any]]:
    """Every API and size in turn: path and body."""
    stream = number % 2 == 0
    match number % 5:
        case 0 | 1:
            return CHAT, chat(f"hello {number}", stream=stream)
        case 2:
            return COMPLETIONS, ids(200 + number, stream=stream)
        case 3:
            return MESSAGES, {**chat(f"hello {number}", stream=stream), "max_tokens": 5}
        case _:
            return COMPLETIONS, ids(9000 + number, stream=stream)  # long: it may be sliced


async def visit(running: Running, number: int, fault: str = "") -> Client:
    """One client that waits for its answer, however long that takes; TimeoutError if it takes too long."""
    path, body = body_of(number)
    client = Client(fault, stream=bool(body["stream"]))
    async with asyncio.timeout(ANSWER_SECONDS), await Connection.open(running.port) as connection:
        await connection.send(request(body, path, headers=[(FAULT_HEADER, fault)]))
        try:
            client.reply = await connection.reply()
        except (ConnectionError, asyncio.IncompleteReadError):
            client.cut = True
    return client


async def crowd(
    running: Running, count: int, *, over_seconds: float = 0.0, faults: Sequence[str] = ("",)
) -> list[Client]:
    """So many clients of each fault that come within that time; fails where one gets no answer."""
    total = count * len(faults)

    async def come(number: int) -> Client:
        await asyncio.sleep(over_seconds * number / total)
        return await visit(running, number // len(faults), faults[number % len(faults)])

    clients = await asyncio.gather(*(come(number) for number in range(total)))
    left_alone = [client for client in clients if not client.has_an_answer()]
    assert not left_alone, f"{len(left_alone)} of {total} clients got no answer: {left_alone[:3]}"
    return clients


def statuses(clients: list[Client]) -> list[int]:
    return [client.reply.status for client in clients if client.reply is not None]


async def pass_by(
    running: Running, number: int, dice: random.Random, longest_seconds: float, fault: str = ""
) -> None:
    """One client that goes away at some moment: in its head, in its body, waiting, or in its answer."""
    path, body = body_of(number)
    data = request(body, path, headers=[(FAULT_HEADER, fault)])
    connection = await Connection.open(running.port)
    try:
        part = len(data) if dice.random() < 0.7 else dice.randrange(len(data))
        await connection.send(data[:part])
        async with asyncio.timeout(dice.random() * longest_seconds):
            while await connection.reader.read(dice.choice((10, 100, 10_000))):
                pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        connection.leave(reset=dice.random() < 0.5)
