"""A fake SGLang, and the rule that no task outlives its test."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fakes import FakeServer
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _shared(one_vocabulary: None) -> None:
    """Every test here starts a proxy."""


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """A server that runs; afterwards no task and no connection may be left."""
    server = await FakeServer().start()
    yield server
    await eventually(lambda: not server.open)
    await server.stop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"left behind: {others}"
