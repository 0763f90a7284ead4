"""How late the event loop wakes up: the one figure that tells a proxy short of CPU."""

import asyncio
from collections.abc import Callable

# Often enough to see a stall between two scrapes, seldom enough to cost nothing.
INTERVAL_SECONDS = 0.25


async def watch_loop_lag(
    observe: Callable[[float], None], *, interval_seconds: float = INTERVAL_SECONDS
) -> None:
    """Reports, for ever, by how many seconds each sleep of `interval_seconds` overran. Cancel to stop."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        observe(max(0.0, loop.time() - due))
