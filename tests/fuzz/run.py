"""Many bad requests against one proxy process, and what is left of them."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.client import Came, send
from tests.fuzz.mutate import case
from tests.fuzz.server import Tolerant, answer
from tests.load.proxy import ProxyServer
from tests.load.vitals import open_sockets, resident_bytes
from tests.raw_http import ask, chat

AT_ONCE = 24
SETTLE_SECONDS = 20.0
WARM_UP_SHARE = 0.25  # of the requests, until caches of names are full
# Of the rest: known texts and responses, and what malloc keeps. A kilobyte a request shows.
MOST_GROWTH_BYTES = 48 * 2**20
SPARE_SOCKETS = 4
SHOWN_PROBLEMS = 20
_TRACES = re.compile(r"Traceback|failed inside the proxy|Exception in|unexpected trouble|never retrieved")

Say = Callable[[str], None]


@dataclass
class Verdict:
    """`problems` is empty when all is as it must be. `statuses` counts answers; 0: there was none."""

    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, -1)  # seconds, and the number of the request

    def note(self, number: int, came: Came, seconds: float) -> None:
        self.statuses[came.status] += 1
        self.slowest = max(self.slowest, (seconds, number))
        if came.problem is not None:
            self.problems.append(f"request {number}: {came.problem}")


async def fuzz(numbers: range, seed: int, folder: Path, say: Say) -> Verdict:
    """Sends these, in any order but all of them, and looks at the process before and after."""
    server = Tolerant(answer=answer)
    await server.start()
    settings = {"PROXY_MAX_BODY_BYTES": "2000000", "PROXY_LOG_LEVEL": "warning"}
    proxy = ProxyServer(server.url, settings, log_path=folder / "proxy.log", say=say)
    verdict = Verdict()
    try:
        proxy.start(wait=False)
        await asyncio.to_thread(proxy.wait_ready)
        await _send_all(proxy, numbers, seed, verdict, say)
        await _check_rest(proxy, verdict)
    finally:
        await asyncio.to_thread(proxy.stop)
        await server.stop()
    traces = _TRACES.findall(proxy.log_path.read_text(errors="replace"))
    if traces:
        verdict.problems.append(f"{len(traces)} traces in {proxy.log_path}, the first: {traces[0]}")
    return verdict


async def _send_all(proxy: ProxyServer, numbers: range, seed: int, verdict: Verdict, say: Say) -> None:
    waiting = iter(numbers)
    begun = time.monotonic()
    before = open_sockets(proxy.pid)
    warm_bytes, warm_after = 0, round(WARM_UP_SHARE * len(numbers))

    async def worker() -> None:
        for number in waiting:
            wanted, began = case(seed, number), time.monotonic()
            verdict.note(number, await send(proxy.port, wanted), time.monotonic() - began)

    async def watch() -> None:
        nonlocal warm_bytes
        while True:
            await asyncio.sleep(1.0)
            done = verdict.statuses.total()
            warm_bytes = warm_bytes or (resident_bytes(proxy.pid) if done >= warm_after else 0)
            if round(time.monotonic() - begun) % 10 == 0:
                rss = resident_bytes(proxy.pid) / 2**20
                say(f"  {done:6,} of {len(numbers):,}: {len(verdict.problems)} problems, {rss:.0f} MB")

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    finally:
        watching.cancel()
    growth = resident_bytes(proxy.pid) - warm_bytes
    if warm_bytes and growth > MOST_GROWTH_BYTES:
        verdict.problems.append(f"memory grew by {growth / 2**20:.0f} MB")
    deadline = time.monotonic() + SETTLE_SECONDS
    while open_sockets(proxy.pid) > before + SPARE_SOCKETS and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    if (left := open_sockets(proxy.pid)) > before + SPARE_SOCKETS:
        verdict.problems.append(f"{left} sockets are open, before it were {before}")


async def _check_rest(proxy: ProxyServer, verdict: Verdict) -> None:
    if not proxy.is_running():
        verdict.problems.append(f"the proxy has ended:\n{proxy.log_tail()}")
        return
    ledger = await asyncio.to_thread(proxy.settled_ledger, SETTLE_SECONDS)
    if any(ledger.values()):
        verdict.problems.append(f"the ledger is not zero: {ledger}")
    status = (await ask(proxy.port, chat())).status
    if status != 200:
        verdict.problems.append(f"a good request got {status} in the end")
