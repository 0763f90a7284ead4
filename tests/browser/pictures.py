"""Takes the pictures of docs/live.md: `python -m tests.browser.pictures`. Needs chromium."""

import asyncio
import itertools
import sys
from pathlib import Path

from tests.browser.chromium import BINARY, Browser, chromium
from tests.browser.load import Load, proxy_under_load

STILL = {"prefers_reduced_motion": "reduce"}  # no block is caught while it fades in
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


async def busy(load: Load, bypass: Load) -> None:
    """Three conversations, one of them between two turns, a stranger, shorts, and a queue."""
    await load.ask(21_000, 3000, session="agent-7")
    await load.ask(33_000, 3000, session="agent-8")
    await bypass.ask(13_000, 3000)
    await load.ask_shorts_for(4)
    await load.ask(60_000, 300, patience_seconds=0.1)
    for _ in range(2):
        await (await load.ask(14_000, 30, session="agent-9")).done
    await load.ask(168_000, 300)
    await load.ask(26_000, 3000, session="agent-10")
    await load.ask(64_000, 300, session="agent-11")
    await load.ask_shorts_for(2, every_seconds=0.12)


async def take(browser: Browser, url: str) -> None:
    for name, width, height in (("live-dark", 1440, 810), ("live-light", 1440, 810)):
        scheme = name.removeprefix("live-")
        page = await browser.open(url, width=width, height=height, prefers_color_scheme=scheme, **STILL)
        await page.until("document.body.dataset.frames > 2")
        await page.picture(PICTURES / f"{name}.png")
    page = await browser.open(url, width=390, height=1250, prefers_color_scheme="dark", **STILL)
    await page.until("document.body.dataset.frames > 2")
    await page.picture(PICTURES / "live-phone.png")


async def main() -> None:
    async with proxy_under_load() as (proxy, load), chromium() as browser:
        server = proxy.app.settings.backend_specs()[0].url
        bypass = Load(int(server.rpartition(":")[2]), numbers=itertools.count(10_000))
        try:
            await busy(load, bypass)
            shorts = asyncio.create_task(load.ask_shorts_for(5, every_seconds=0.15))
            await take(browser, f"http://127.0.0.1:{proxy.port}/admission/live")
            await shorts
        finally:
            await bypass.leave()


if __name__ == "__main__":
    if BINARY is None:
        sys.exit("chromium is not installed")
    asyncio.run(main())
