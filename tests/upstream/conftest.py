"""A fake server, a backend in front of it, and the rule that nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from proxy.backend_spec import BackendSpec
from proxy.upstream import Backend, make_client
from tests.fakes import FakeServer, fake_server
from tests.upstream.support import Connect, Heard
from tests.waiting import eventually


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Under uvloop, as it is served; what talks to sockets itself also under asyncio's own loop."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name == "test_transport.py":
        loops["asyncio"] = asyncio.new_event_loop
    return loops


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """A server that runs; afterwards no task and no connection may be left."""
    async with fake_server() as server:
        yield server


@pytest_asyncio.fixture
async def connect(fake: FakeServer, heard: Heard) -> AsyncIterator[Connect]:
    """Makes a started backend for the fake server; by default one that is already up."""
    client = make_client(connect_seconds=1.0)
    backends: list[Backend] = []

    async def make(*, wait: bool = True, spec: dict[str, Any] | None = None, **settings: Any) -> Backend:
        settings = {"poll_seconds": 0.05, "connect_seconds": 1.0, "stall_seconds": 5.0, **settings}
        named = BackendSpec(**{"url": fake.url, "name": "b", **(spec or {})})
        backend = Backend(named, listener=heard, client=client, **settings)
        backends.append(backend)
        await backend.start()
        if wait:
            await eventually(lambda: bool(heard.up and heard.loads))
        return backend

    yield make
    for backend in backends:
        await backend.close()
    await client.aclose()
