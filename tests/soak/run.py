"""A soak from beginning to end, and its verdict."""

import asyncio
import random
import time
from pathlib import Path

from tests.load.figures import Row, inform, require
from tests.load.process import Say
from tests.load.proxy import ProxyServer
from tests.load.vitals import open_sockets
from tests.soak.engines import Engine
from tests.soak.guests import GUESTS, Party
from tests.soak.outages import Outage, outages, signals
from tests.soak.watch import Watch

QUEUE_SECONDS = "60"
END_SECONDS = 240.0  # for what had begun when the time was over
SETTLE_SECONDS = 60.0
MOST_GROWTH = 0.05
JUDGED_SECONDS = 600.0  # shorter runs never leave their warm-up
RESUME_SECONDS = 2.0
SPARE_SOCKETS = 1  # of a poll under way
SHOWN = 10


def soak(engine: Engine, seconds: float, folder: Path, seed: int, say: Say) -> list[Row]:
    """Runs for so long with the started server; gives the table. What went wrong is said."""
    settings = {
        "PROXY_MAX_QUEUE_SECONDS": QUEUE_SECONDS,
        "PROXY_DECISION_LOG": str(folder / "decisions.jsonl"),
    }
    with ProxyServer(engine.base_url, settings, log_path=folder / "proxy.log", say=say) as proxy:
        return asyncio.run(_soak(engine, proxy, seconds, seed, say))


async def _soak(engine: Engine, proxy: ProxyServer, seconds: float, seed: int, say: Say) -> list[Row]:
    party = Party(engine, proxy.port, random.Random(seed))
    await asyncio.sleep(1.0)
    sockets_before, pid = open_sockets(proxy.pid), proxy.pid
    watch = Watch(proxy)
    looking = asyncio.create_task(watch.look(party.tally, seconds, say))
    killing = asyncio.create_task(outages(party, max(60.0, min(180.0, seconds / 3)), say))
    guests = [asyncio.create_task(guest(party)) for guest in GUESTS]
    guests.append(asyncio.create_task(signals(party, proxy)))
    await asyncio.sleep(seconds)
    growth = watch.growth(seconds)
    party.over.set()
    _, late = await asyncio.wait(guests, timeout=END_SECONDS)
    for task in late:
        task.cancel()
        party.tally.lost(f"{task.get_coro()}: still waiting {END_SECONDS:g} s after the end")
    found = await killing
    looking.cancel()
    ledger = await asyncio.to_thread(proxy.settled_ledger, SETTLE_SECONDS)
    sockets = await _sockets_at_rest(proxy, sockets_before + SPARE_SOCKETS)
    same = proxy.is_running() and proxy.pid == pid
    for line in party.tally.unanswered[:SHOWN]:
        say(f"  unanswered: {line}")
    return _table(party, found, ledger, growth, seconds, sockets_before, sockets, same)


async def _sockets_at_rest(proxy: ProxyServer, most: int) -> int:
    """How many are open, once those that idle have been closed."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while open_sockets(proxy.pid) > most and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
    return open_sockets(proxy.pid)


def _table(
    party: Party,
    outages_seen: list[Outage],
    ledger: dict[str, float],
    growth: float,
    seconds: float,
    sockets_before: int,
    sockets: int,
    same: bool,
) -> list[Row]:
    tally = party.tally
    left = ", ".join(f"{name} {value:g}" for name, value in ledger.items() if value) or "0"
    slowest = max((seen.resumed_seconds for seen in outages_seen), default=0.0)
    long_enough = seconds >= JUDGED_SECONDS
    shown_growth = f"{growth:+.1%}"
    memory = (
        require("memory after the warm-up", "", shown_growth, f"< {MOST_GROWTH:+.0%}", growth < MOST_GROWTH)
        if long_enough
        else inform("memory (too short to judge)", "", shown_growth)
    )
    return [
        inform("requests", "", f"{tally.asked:,}"),
        *(inform(f"  {end}", "", f"{count:,}") for end, count in tally.ends.most_common()),
        require("unanswered", "", str(len(tally.unanswered)), "0", not tally.unanswered),
        require("ledger at rest", "", left, "0", not any(ledger.values())),
        memory,
        require(
            "sockets at rest",
            str(sockets_before),
            str(sockets),
            "as at the start",
            sockets <= sockets_before + SPARE_SOCKETS,
        ),
        require(
            f"traffic again, the slowest of {len(outages_seen)}",
            "",
            f"{slowest:.2f} s",
            f"<= {RESUME_SECONDS:g} s",
            slowest <= RESUME_SECONDS,
        ),
        require("the proxy's process", "", "the same" if same else "another", "the same", same),
    ]
