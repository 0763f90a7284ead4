"""Plays a workload against a base URL, each client a task of its own."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.load.http1 import BadAnswer, Exchange, Headers, encode_request
from tests.load.outcome import Outcome, Reader
from tests.load.workload import Ask, Client, Vocabulary, Workload

CHAT_PATH = "/v1/chat/completions"
REQUEST_SECONDS_MAX = 900.0

Bodies = Sequence[Sequence[bytes]]


async def ask(
    base_url: str,
    body: bytes,
    outcome: Outcome,
    *,
    headers: Headers | None = None,
    began: float = 0.0,
    leave: asyncio.Event | None = None,
) -> None:
    """One chat request, from connecting to the end of its answer; `outcome` fills as it goes.

    `began` is the time.monotonic that the outcome's times count from. When `leave` is set the client
    goes away. Faults of the other side are noted in the outcome, never raised.
    """
    url = base_url + CHAT_PATH
    reader = Reader(outcome, began)
    exchange = Exchange(encode_request("POST", url, body, headers), reader)
    try:
        await exchange.connect(url)
        await _until_end_or_left(exchange.ended, leave)
        if exchange.ended.done():
            reader.finish()
    except (OSError, BadAnswer) as problem:
        outcome.broken = True
        outcome.error = outcome.error or f"{type(problem).__name__}: {problem}"
    finally:
        exchange.leave()
        outcome.ended_at = time.monotonic() - began


async def _until_end_or_left(ended: asyncio.Future[None], leave: asyncio.Event | None) -> None:
    if leave is None:
        await asyncio.wait_for(ended, REQUEST_SECONDS_MAX)
        return
    leaving = asyncio.create_task(leave.wait())
    either: tuple[asyncio.Future[None] | asyncio.Task[bool], ...] = (ended, leaving)
    await asyncio.wait(either, timeout=REQUEST_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if ended.done():
        ended.result()


def make_bodies(workload: Workload, vocabulary: Vocabulary, model: str) -> Bodies:
    """Every request's bytes, made beforehand: while the load runs, the client only waits and reads."""
    return [[wanted.body(vocabulary, model) for wanted in client.asks] for client in workload.clients]


async def play(
    base_url: str,
    workload: Workload,
    bodies: Bodies,
    *,
    began: float,
    outcomes: list[Outcome] | None = None,
) -> list[Outcome]:
    """Plays the whole load and returns what came of every attempt, in the order of their ends.

    A list handed in as `outcomes` fills while the load runs.
    """
    gate = asyncio.Semaphore(workload.concurrency or len(workload.clients))
    found = [] if outcomes is None else outcomes

    async def act(number: int, client: Client, client_bodies: Sequence[bytes]) -> None:
        await asyncio.sleep(max(0.0, began + client.start_seconds - time.monotonic()))
        for turn, (wanted, body) in enumerate(zip(client.asks, client_bodies, strict=True)):
            if turn:
                await asyncio.sleep(client.think_seconds)
            outcome = Outcome.of(wanted, started_at=0.0, client=number, turn=turn)
            async with gate:
                await _ask_until_served(base_url, wanted, body, outcome, workload, began, found)

    until = None if workload.seconds is None else began + workload.seconds - time.monotonic()
    with contextlib.suppress(TimeoutError):  # the load is over
        async with asyncio.timeout(until), asyncio.TaskGroup() as tasks:
            for number, (client, client_bodies) in enumerate(zip(workload.clients, bodies, strict=True)):
                tasks.create_task(act(number, client, client_bodies))
    return found


async def _ask_until_served(
    base_url: str,
    wanted: Ask,
    body: bytes,
    first: Outcome,
    workload: Workload,
    began: float,
    outcomes: list[Outcome],
) -> None:
    """Asks, and asks again where refused. `first` says who asks; each attempt has an outcome of its own."""
    give_up_at = time.monotonic() + workload.patience_seconds
    for attempt in itertools.count(1):
        outcome = replace(first, attempt=attempt, started_at=time.monotonic() - began)
        try:
            await ask(base_url, body, outcome, headers=wanted.headers, began=began)
        except asyncio.CancelledError:
            outcome.cut = True
            raise
        finally:
            outcomes.append(outcome)
        if not (outcome.refused and workload.obey_retry_after):
            return
        if workload.obey_should_retry and not outcome.may_retry:
            return
        wait_seconds = float(outcome.headers["retry-after"])
        if time.monotonic() + wait_seconds > give_up_at:
            return
        await asyncio.sleep(wait_seconds)
