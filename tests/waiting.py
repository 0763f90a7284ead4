"""Waiting for something to come true, in tests."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Waits until the condition holds; fails the test if it does not within `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
