import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.load.client import make_bodies, play
from tests.load.workload import Ask, Client, Vocabulary, Workload

WORDS = Vocabulary(("alpha", "beta"), chat_overhead_tokens=10, exchange_overhead_tokens=12)
ASK = Ask("short", 20, 2, text_seed=1, stream=False)
SERVED = {
    "choices": [{"finish_reason": "length"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 2},
}


def answer(status: str, body: object, *headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


BUSY = answer("429 Too Many Requests", {}, "retry-after: 0")
HOPELESS = answer("429 Too Many Requests", {}, "retry-after: 0", "x-should-retry: false")
DONE = answer("200 OK", SERVED)


@asynccontextmanager
async def server(reply: Callable[[int], bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers its n-th request with `reply(n)`; nothing where that is empty. Gives the heads it got."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        said = reply(len(heads))
        writer.write(said)
        if not said:
            await reader.read()  # until the client is gone
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", heads


async def played(url: str, workload: Workload) -> list[tuple[int, bool, bool]]:
    bodies = make_bodies(workload, WORDS, "tiny")
    outcomes = await play(url, workload, bodies, began=time.monotonic())
    return [(outcome.attempt, outcome.served, outcome.cut) for outcome in outcomes]


async def test_a_refused_client_comes_back_when_it_was_told_to() -> None:
    workload = Workload((Client(0.0, (ASK,)),), obey_retry_after=True)
    async with server(lambda number: DONE if number == 3 else BUSY) as (url, _):
        assert await played(url, workload) == [(1, False, False), (2, False, False), (3, True, False)]


async def test_a_client_that_obeys_does_not_come_back_where_it_was_told_not_to() -> None:
    workload = Workload((Client(0.0, (ASK,)),), obey_retry_after=True, obey_should_retry=True)
    async with server(lambda number: DONE if number == 2 else HOPELESS) as (url, _):
        assert await played(url, workload) == [(1, False, False)]
        stubborn = replace(workload, obey_should_retry=False)
    async with server(lambda number: DONE if number == 2 else HOPELESS) as (url, _):
        assert await played(url, stubborn) == [(1, False, False), (2, True, False)]


async def test_when_the_load_is_over_who_still_waits_is_cut_off_and_that_is_no_failure() -> None:
    workload = Workload((Client(0.0, (ASK,)), Client(0.0, (ASK,))), seconds=0.2)
    async with server(lambda number: DONE if number == 1 else b"") as (url, _):
        assert sorted(await played(url, workload)) == [(1, False, True), (1, True, False)]


async def test_a_request_says_whose_it_is() -> None:
    workload = Workload((Client(0.0, (replace(ASK, session="agent-01", tenant="light"),)),))
    async with server(lambda _: DONE) as (url, heads):
        await played(url, workload)
    assert b"x-session-id: agent-01" in heads[0]
    assert b"x-tenant: light" in heads[0]
