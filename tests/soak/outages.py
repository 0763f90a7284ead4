"""Ends and restarts the server while the party goes on."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass

from tests.load.process import Say
from tests.load.proxy import ProxyServer
from tests.raw_http import ask
from tests.soak.guests import Party

SIGNAL_SECONDS = 60.0
PROBE_SECONDS = 0.02
PROBE = {"messages": [{"role": "user", "content": "are you back?"}], "max_tokens": 1}


@dataclass(frozen=True)
class Outage:
    """Times on time.monotonic. `resumed_seconds`: from readiness until a request was served."""

    killed_at: float
    ready_at: float
    resumed_seconds: float


async def outage(party: Party, down_seconds: float, say: Say) -> Outage:
    """kill -9, a while of nothing, a new start, and traffic again."""
    engine = party.engine
    say("  kill -9 of the server")
    engine.kill9()
    killed_at = time.monotonic()
    await asyncio.sleep(down_seconds)
    engine.start(wait=False)  # from this thread: the kernel ends a server with the thread that started it
    await asyncio.to_thread(engine.wait_ready)
    ready_at = time.monotonic()
    while not await _is_served(party):
        await asyncio.sleep(PROBE_SECONDS)
    return Outage(killed_at, ready_at, time.monotonic() - ready_at)


async def _is_served(party: Party) -> bool:
    body = {**PROBE, "model": party.engine.model}
    return (await ask(party.port, body)).status == 200


async def outages(party: Party, mean_seconds: float, say: Say) -> list[Outage]:
    """One after the other, until the party is over."""
    found: list[Outage] = []
    while await party.pause(mean_seconds):
        found.append(await outage(party, party.dice.uniform(0.0, 3.0), say))
        say(f"  traffic again {found[-1].resumed_seconds:.2f} s after readiness")
    return found


async def signals(party: Party, proxy: ProxyServer) -> None:
    """The settings are read again every minute, and are the same."""
    while await party.pause(SIGNAL_SECONDS):
        os.kill(proxy.pid, signal.SIGHUP)
