"""A proxy before a fake server, on real sockets and uvloop, and the rule that nothing is left of a fault."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from tests.fakes import FakeServer, fake_server
from tests.load.vitals import open_sockets
from tests.waiting import eventually


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As it is served."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _shared(one_vocabulary: None) -> None:
    """Every test here starts a proxy."""


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """A server that runs. Afterwards no task, no connection and no socket may be left."""
    before = open_sockets(os.getpid())
    async with fake_server() as server:
        yield server
    await eventually(lambda: open_sockets(os.getpid()) <= before)
