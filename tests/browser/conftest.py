"""A browser for each test, where there is one."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.browser.chromium import BINARY, Browser, chromium


@pytest.fixture(autouse=True)
def _shared(one_vocabulary: None) -> None:
    """Every test here starts a proxy."""


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    if BINARY is None:
        pytest.skip("chromium is not installed (Debian package chromium)")
    async with chromium() as started:
        yield started
