"""A fake SGLang, and the rule that no task outlives its test."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fakes import FakeServer, fake_server
from tests.proxies import Running, proxy_before
from tests.raw_http import chat
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _shared(one_vocabulary: None) -> None:
    """Every test here starts a proxy."""


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """A server that runs; afterwards no task and no connection may be left."""
    async with fake_server() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def both(one_vocabulary: None) -> AsyncIterator[tuple[FakeServer, Running]]:
    """One server and one proxy for all tests of a module: each leaves them as it found them."""
    server = await FakeServer().start()
    async with proxy_before(server) as running:
        yield server, running
    await eventually(lambda: not server.open)
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def server(both: tuple[FakeServer, Running]) -> FakeServer:
    """The module's server, with nothing of the test before."""
    standing, _ = both
    standing.requests.clear()
    standing.answer = None
    return standing


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(server: FakeServer, both: tuple[FakeServer, Running]) -> AsyncIterator[Running]:
    """The module's proxy: after each test it still serves, and owes nothing."""
    _, running = both
    yield running
    server.answer = None
    await running.settled()
    assert (await running.ask(chat())).status == 200
    await running.settled()
