"""Whatever ends a request, and whenever: it leaves the books exactly once, and its tokens with it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from proxy.admission.books import Books
from proxy.admission.job import Job, State
from tests.e2e.holding import Held
from tests.fakes import FakeServer, Received, Wire
from tests.proxies import Running, proxy_before
from tests.raw_http import Connection, chat, request
from tests.waiting import eventually

SLICED_TOKENS = 30_000
STALL_SECONDS = 0.3
PHASES = {
    "queued": State.QUEUED,
    "sliced": State.SLICING,
    "prefilled": State.PREFILL,
    "streaming": State.DECODE,
}


class Phases:
    """A server before which a request stays in the phase that is wanted."""

    def __init__(self, fake: FakeServer, phase: str) -> None:
        self._phase = phase
        self._held = Held(fake, silent=phase == "prefilled")

    async def __call__(self, received: Received, wire: Wire) -> None:
        if received.target == "/v1/tokenize":
            await wire.json({"tokens": [5] * SLICED_TOKENS, "count": SLICED_TOKENS})
        elif received.target == "/generate":
            await asyncio.sleep(3600)
        else:
            await self._held(received, wire)


async def client_leaves(client: Connection, fake: FakeServer, proxy: Running) -> None:
    client.leave(reset=True)


async def server_dies(client: Connection, fake: FakeServer, proxy: Running) -> None:
    await fake.stop()


async def time_passes(client: Connection, fake: FakeServer, proxy: Running) -> None:
    """The deadline of one that waits; of an answer the first byte, or the next."""


async def proxy_drains(client: Connection, fake: FakeServer, proxy: Running) -> None:
    proxy.app.gate.drain()
    client.leave(reset=True)  # as SIGINT cuts the connections of what still runs


async def proxy_drains_and_server_dies(client: Connection, fake: FakeServer, proxy: Running) -> None:
    proxy.app.gate.drain()
    await fake.stop()


Ending = Callable[[Connection, FakeServer, Running], Awaitable[None]]


@pytest.mark.parametrize(
    "ending", [client_leaves, server_dies, time_passes, proxy_drains, proxy_drains_and_server_dies]
)
@pytest.mark.parametrize("phase", PHASES)
async def test_a_request_leaves_the_books_once(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, phase: str, ending: Ending
) -> None:
    left: Counter[str] = Counter()
    leave = Books._leave

    def counted(books: Books, job: Job, *, unused_tokens: int) -> None:
        left[job.rid] += 1
        leave(books, job, unused_tokens=unused_tokens)

    monkeypatch.setattr(Books, "_leave", counted)
    fake.answer = Phases(fake, phase)
    async with proxy_before(fake, stall_seconds=STALL_SECONDS, drain_seconds=1.0) as proxy:
        jobs = proxy.app.gate.controller.jobs
        gate, pool = proxy.app.gate, proxy.app.gate.controller.lines["b0"].pool
        if phase == "queued":
            pool.hold_until = gate.clock() + 0.5
        tokens = SLICED_TOKENS if phase == "sliced" else 20
        client = await Connection.open(proxy.port)
        # a request whose server dies before it has answered waits for another, but no longer than this
        patience = [("x-request-timeout-ms", "1000")]
        await client.send(request(chat("word " * tokens, stream=True), headers=patience))
        await eventually(lambda: any(job.state is PHASES[phase] for job in jobs.values()))
        if phase == "queued":
            pool.hold_until = gate.clock() + 60.0
        if phase == "sliced":
            await eventually(lambda: any(job.slice_ends for job in jobs.values()))
        (rid,) = jobs
        await ending(client, fake, proxy)
        if ending is time_passes and phase == "sliced":
            client.leave()  # its wait is over, and a slice has no deadline of its own but the server's end
            await fake.stop()
        await proxy.settled(10)
        await asyncio.sleep(0.1)  # nothing comes a second time
        assert left == {rid: 1}
        client.leave()
