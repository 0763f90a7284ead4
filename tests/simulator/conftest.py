from collections.abc import AsyncIterator

import pytest

from proxy.simulator.intake import Lengths
from proxy.simulator.server import ServerConfig
from tests.simulator.serving import FAST, serving


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A small fast server whose outputs end by themselves after about 20 tokens."""
    async with serving(ServerConfig(FAST, lengths=Lengths(median_tokens=20))) as base:
        yield base
