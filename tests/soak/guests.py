"""The clients of a soak: each kind is an endless loop that ends when the party is over."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from tests.load.client import ask
from tests.load.outcome import Outcome
from tests.load.workload import Ask
from tests.raw_http import Connection, request
from tests.soak.engines import Engine
from tests.soak.tally import Tally

Dice = random.Random
ANSWER_SECONDS = 20.0  # for a bad request
SLOW_READ_BYTES, SLOW_READ_SECONDS = 64, 0.05


@dataclass
class Party:
    """Where the guests are, and what came of them. `over` is set when nobody shall begin anything more."""

    engine: Engine
    port: int
    dice: Dice
    tally: Tally = field(default_factory=Tally)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(
        self,
        kind: str,
        prompt_tokens: int,
        max_tokens: int,
        *,
        stream: bool = True,
        leave_after_seconds: float | None = None,
    ) -> None:
        """One request, to its end or until its client leaves."""
        wanted = Ask(kind, prompt_tokens, max_tokens, self.dice.getrandbits(48), stream=stream)
        outcome = Outcome.of(wanted, started_at=time.monotonic())
        body = wanted.body(self.engine.vocabulary, self.engine.model)
        leave = asyncio.Event()
        if leave_after_seconds is not None:
            asyncio.get_running_loop().call_later(leave_after_seconds, leave.set)
        await ask(f"http://127.0.0.1:{self.port}", body, outcome, leave=leave)
        self.tally.note(outcome, left=leave.is_set())

    async def pause(self, mean_seconds: float) -> bool:
        """Waits for about so long; whether the party goes on."""
        try:
            await asyncio.wait_for(self.over.wait(), self.dice.expovariate(1 / mean_seconds))
        except TimeoutError:
            return True
        return False


Guest = Callable[[Party], Coroutine[None, None, None]]


async def shorts(party: Party) -> None:
    """Chats that come whether or not the last was answered."""
    dice = party.dice
    async with asyncio.TaskGroup() as tasks:
        while await party.pause(0.7):
            stream = dice.random() < 0.7
            tasks.create_task(party.ask("short", dice.randint(50, 1500), dice.randint(5, 120), stream=stream))


async def longs(party: Party) -> None:
    """One long context after the other."""
    while await party.pause(3.0):
        tokens = round(party.engine.pool * party.dice.uniform(0.08, 0.35))
        await party.ask("long", tokens, party.dice.randint(20, 200))


async def giants(party: Party) -> None:
    """Now and then one that needs nearly all of the pool."""
    while await party.pause(45.0):
        await party.ask("giant", round(party.engine.pool * party.dice.uniform(0.7, 0.95)), 50)


async def leavers(party: Party) -> None:
    """Go away at some moment, some of them with a long prompt."""
    while await party.pause(1.5):
        share = party.dice.choice((0.001, 0.01, 0.2))
        patience = party.dice.expovariate(1.0)
        tokens = max(50, round(party.engine.pool * share))
        await party.ask("leaver", tokens, 300, leave_after_seconds=patience)


async def bursts(party: Party) -> None:
    """Twenty-five at once."""
    while await party.pause(30.0):
        await asyncio.gather(*(party.ask("burst", party.dice.randint(50, 400), 20) for _ in range(25)))


async def slow_readers(party: Party) -> None:
    """Take their answers in small bites; half of them lose patience."""
    while await party.pause(4.0):
        wanted = Ask("slow", 100, 300, party.dice.getrandbits(48))
        body = wanted.body(party.engine.vocabulary, party.engine.model)
        until = time.monotonic() + party.dice.choice((3.0, 600.0))
        connection = await Connection.open(party.port, receive_buffer_bytes=4096)
        try:
            await connection.send(request(body, headers=[("connection", "close")]))
            status = (await connection.head()).status
            while await connection.reader.read(SLOW_READ_BYTES) and time.monotonic() < until:
                await asyncio.sleep(SLOW_READ_SECONDS)
            party.tally.ends["read slowly" if status == 200 else "refused"] += 1
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            party.tally.lost(f"slow: {type(error).__name__}")
        finally:
            connection.leave()


BAD: tuple[tuple[bytes, frozenset[int]], ...] = (
    (request(b"nonsense"), frozenset({400})),
    (request(b'{"model": "m"}'), frozenset({400})),
    (request({"messages": [{"role": "user", "content": "a"}], "n": 10**9}), frozenset({400})),
    (request({"prompt": [10**9]}, "/v1/completions"), frozenset({400, 503})),
    (request({}, "/flush_cache"), frozenset({404})),
    (request(method="DELETE"), frozenset({405})),
    (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", frozenset({400})),
    (b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 999999999999\r\n\r\n", frozenset({413})),
)


async def bad_ones(party: Party) -> None:
    """What is no request, or must not pass."""
    while await party.pause(0.5):
        data, expected = party.dice.choice(BAD)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), await Connection.open(party.port) as connection:
                await connection.send(data)
                status = (await connection.head()).status
        except (OSError, asyncio.IncompleteReadError) as error:
            party.tally.lost(f"bad request: {type(error).__name__}")
            continue
        if status in expected:
            party.tally.ends["bad"] += 1
        else:
            party.tally.lost(f"bad request: status {status} for {data[:60]!r}")


GUESTS: tuple[Guest, ...] = (shorts, longs, longs, giants, leavers, leavers, bursts, slow_readers, bad_ones)
