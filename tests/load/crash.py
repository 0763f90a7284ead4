"""The engine dies by kill -9 in the middle of everything, and comes back."""

import asyncio
import contextlib
import time
from pathlib import Path

from tests.load.figures import Row, require
from tests.load.outcome import Outcome
from tests.load.process import Say
from tests.load.proxy import ProxyServer
from tests.load.scenario import Engine
from tests.load.stage import Stage, Timeout, Visitor
from tests.sglang.server import SGLangServer

STREAMS = 6
ANSWER_SECONDS = 10.0  # until every client whose stream broke has been told
RESUME_SECONDS = 5.0  # until traffic flows again, once the engine is ready
WAITER_SECONDS = 90.0  # until those that had no byte yet are served, or told that they are not
SETTLE_SECONDS = 15.0


def crash(server: SGLangServer, engine: Engine, folder: Path, say: Say, rounds: int = 1) -> list[Row]:
    """Kills and restarts the server under running, prefilling and queued requests; gives the table."""
    settings = {"PROXY_MAX_QUEUE_SECONDS": "600"}
    with ProxyServer(server.base_url, settings, log_path=folder / "proxy.log", say=say) as proxy:
        stage = Stage(server, proxy)
        return [row for _ in range(rounds) for row in asyncio.run(_play(stage, say))]


async def _play(stage: Stage, say: Say) -> list[Row]:
    server, proxy = stage.server, stage.proxy
    pool, pid = server.pool, proxy.pid
    streams = [stage.visit("stream", 300, 4_000) for _ in range(STREAMS)]
    for visitor in streams:
        await stage.until("all streams run", visitor.streams)
    large = [stage.visit("large", round(0.6 * pool), 200) for _ in range(2)]  # one prefills, one waits
    await stage.until("a prefill is under way", lambda: _uses_more_than(stage, 0.1 * pool))
    say("  kill -9 of the engine")
    server.kill9()
    killed = time.monotonic()
    slowest = await _all_answered(streams, killed)
    with contextlib.suppress(Timeout):
        await stage.until("the prefilling one is told", large[0].has_ended, ANSWER_SECONDS)
    told_in_time = await large[0].has_ended()
    server.start(wait=False)  # from this thread: the kernel ends a server with the thread that started it
    await asyncio.to_thread(server.wait_ready)
    ready = time.monotonic()
    resumed = await _until_served(stage) - ready
    prefilling, queued = [await _end_within(visitor, WAITER_SECONDS) for visitor in large]
    await stage.until("all is idle and nothing charged", stage.is_idle, SETTLE_SECONDS)
    told = sum(_was_answered(visitor.outcome) for visitor in streams)
    same = proxy.is_running() and proxy.pid == pid
    return [
        require("broken streams that were told", "", f"{told}/{STREAMS}", "all", told == STREAMS),
        require(
            "the slowest of them",
            "",
            f"{slowest:.1f} s",
            f"<= {ANSWER_SECONDS:g} s",
            slowest <= ANSWER_SECONDS,
        ),
        require(
            "the one in mid-prefill",
            "",
            _told(prefilling),
            f"an answer in {ANSWER_SECONDS:g} s, or served later",
            (told_in_time and _was_answered(prefilling)) or prefilling.served,
        ),
        require("the one in the queue", "", _told(queued), "an answer", _was_answered(queued)),
        require(
            "traffic again", "", f"{resumed:.1f} s", f"<= {RESUME_SECONDS:g} s", resumed <= RESUME_SECONDS
        ),
        require("the proxy's process", "", "the same" if same else "another", "the same", same),
        require("ledger at the end", "", "0", "exactly 0", True),  # is_idle has waited for it
    ]


def _told(outcome: Outcome) -> str:
    return "served" if outcome.served else f"status {outcome.status}"


def _was_answered(outcome: Outcome) -> bool:
    """A whole answer, an error status, or an error event at the end of a stream."""
    return outcome.status != 0 and not outcome.broken


async def _uses_more_than(stage: Stage, tokens: float) -> bool:
    return await stage.used_tokens() > tokens


async def _all_answered(visitors: list[Visitor], killed: float) -> float:
    try:
        async with asyncio.timeout(3 * ANSWER_SECONDS):
            outcomes = [await visitor.end() for visitor in visitors]
    except TimeoutError as late:
        raise Timeout("some clients never got an answer") from late
    return max((outcome.ended_at or killed) - killed for outcome in outcomes)


async def _end_within(visitor: Visitor, seconds: float) -> Outcome:
    try:
        return await asyncio.wait_for(visitor.end(), seconds)
    except TimeoutError as late:
        raise Timeout(f"a {visitor.outcome.kind} client never got an answer") from late


async def _until_served(stage: Stage) -> float:
    """Asks small things until one is served; says when it began to be."""

    async def served() -> bool:
        outcome = await stage.visit("small", 200, 4).end()
        return outcome.served

    await stage.until("a request is served again", served)
    return time.monotonic()
