"""Clients that leave: how soon are the engine's tokens back, and is nothing charged twice meanwhile?"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.load.figures import Row, require, within
from tests.load.process import Say
from tests.load.proxy import ProxyServer
from tests.load.scenario import Engine, pace_of
from tests.load.stage import Stage
from tests.sglang.server import SGLangServer
from tests.sglang.shim.pacing import Pace

CHUNK_TOKENS = 8192  # what the engine prefills in one step; no abort cuts it short
BACK_SECONDS = 0.3  # for the tokens to be back, after the chunk under way
GIANT_SHARE, HOLDER_SHARE, WAITER_SHARE, TALKER_SHARE = 0.965, 0.8, 0.65, 0.32  # of the pool
SETTLE_SECONDS = 15.0
SHARE_UNCOVERED_MAX = 0.02  # of the pool: a chunk that the ledger counts an instant later


@dataclass(frozen=True, slots=True)
class Departure:
    """How long the engine still worked for a client that had left, and how long it might."""

    phase: str
    worked_seconds: float
    allowed_seconds: float

    def row(self) -> Row:
        return within(f"client gone {self.phase}", self.worked_seconds, self.allowed_seconds)


def departures(server: SGLangServer, engine: Engine, folder: Path, say: Say, rounds: int = 1) -> list[Row]:
    """Plays every way of leaving, `rounds` times, and gives the table."""
    settings = {"PROXY_MAX_QUEUE_SECONDS": "600"}
    with ProxyServer(server.base_url, settings, log_path=folder / "proxy.log", say=say) as proxy:
        return asyncio.run(_play(Stage(server, proxy), pace_of(engine), say, rounds))


async def _play(stage: Stage, pace: Pace, say: Say, rounds: int) -> list[Row]:
    rows: list[Row] = []
    uncovered, committed, least, queue = 0.0, 0.0, 0.0, 0
    for _ in range(rounds):
        for leave in (leave_queued, leave_prefilling, leave_streaming, leave_early):
            stage.server.flush_cache()
            async with stage.watched():
                departure = await leave(stage, pace)
                await stage.until("all is idle and nothing charged", stage.is_idle, SETTLE_SECONDS)
            watch = stage.watch
            say(f"    most committed {watch.most_committed():,.0f}, most used {watch.most_used():,}")
            uncovered = max(uncovered, watch.most_uncovered())
            committed = max(committed, watch.most_committed())
            least = min(least, watch.least_committed())
            queue = max(queue, watch.longest_engine_queue())
            rows.append(departure.row())
            say(f"  gone {departure.phase}: tokens back after {departure.worked_seconds:.2f} s")
    pool = stage.server.pool
    return [
        *rows,
        within("most committed at once", committed, pool, "tokens"),
        within("used but not charged", uncovered, SHARE_UNCOVERED_MAX * pool, "tokens"),
        require("least committed", "", f"{least:,.0f}", "never below 0", least >= 0),
        require("longest queue in the engine", "", str(queue), "<= 1", queue <= 1),
        require("ledger at the end", "", "0", "exactly 0", True),  # is_idle has waited for it
    ]


async def leave_queued(stage: Stage, pace: Pace) -> Departure:
    """Waits in the proxy behind a large one: out of the queue at once, and never in the engine."""
    pool = stage.server.pool
    holder = stage.visit("holder", round(HOLDER_SHARE * pool), 4_000)
    await stage.until("the holder streams", holder.streams)
    waiter = stage.visit("waiter", round(WAITER_SHARE * pool), 200)
    await stage.until("the second one is queued", _queue_is(stage, 1))
    left = await waiter.leave()
    await stage.until("the queue is empty again", _queue_is(stage, 0))
    out = time.monotonic() - left
    await holder.leave()
    if stage.watch.most_used() > round((HOLDER_SHARE + 0.1) * pool):
        raise AssertionError("the request that was to wait has entered the engine")
    return Departure("while queued", out, BACK_SECONDS)


async def leave_prefilling(stage: Stage, pace: Pace) -> Departure:
    """In mid-prefill; another large one comes at once, and must not be let in before the tokens are back."""
    pool = stage.server.pool
    quarter = round(0.25 * pool)
    giant = stage.visit("giant", round(GIANT_SHARE * pool), 200)
    await stage.until("the giant is being prefilled", _uses(stage, quarter))
    left = await giant.leave()
    depth = max(quarter, stage.watch.most_used())  # between slices the engine uses nothing
    follower = stage.visit("follower", round(HOLDER_SHARE * pool), 20)
    worked = await _until_dropped(stage, left, depth)
    outcome = await follower.end()
    if not outcome.served:
        raise AssertionError(f"the one that came next was not served: {outcome.error or outcome.status}")
    return Departure("in mid-prefill", worked, BACK_SECONDS + pace.prefill_seconds(CHUNK_TOKENS, depth))


async def leave_streaming(stage: Stage, pace: Pace) -> Departure:
    """While its answer streams."""
    talker = stage.visit("talker", round(TALKER_SHARE * stage.server.pool), 4_000)
    await stage.until("the answer streams", talker.streams)
    await asyncio.sleep(0.5)
    left = await talker.leave()
    return Departure("mid-stream", await _until_dropped(stage, left, stage.watch.most_used()), BACK_SECONDS)


async def leave_early(stage: Stage, pace: Pace) -> Departure:
    """50 ms after its last byte, when perhaps nobody has counted or tokenized the prompt yet.

    What counts is for how long the engine used tokens for nobody.
    """
    giant = stage.visit("giant", round(GIANT_SHARE * stage.server.pool), 200)
    await stage.until("the giant was sent", giant.was_sent)
    await asyncio.sleep(0.05)
    left = await giant.leave()
    await asyncio.sleep(3.0)  # what was sent may still be tokenized, and would start only now
    await stage.until("all is idle", stage.is_idle)
    uses = stage.watch.uses_after(left)
    worked = uses[-1].at - uses[0].at if uses else 0.0
    allowed = BACK_SECONDS + pace.prefill_seconds(CHUNK_TOKENS, CHUNK_TOKENS)
    return Departure("50 ms after sending", worked, allowed)


async def _until_dropped(stage: Stage, left: float, depth: int) -> float:
    """Seconds from `left` until the engine uses less than half of what it used."""

    samples = stage.watch.engine

    async def dropped() -> bool:
        return bool(samples) and samples[-1].told_at > left and samples[-1].used_tokens < depth / 2

    await stage.until("the engine let go", dropped)
    return samples[-1].told_at - left


def _queue_is(stage: Stage, length: int) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return await stage.queued_in_proxy() == length

    return holds


def _uses(stage: Stage, tokens: int) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return await stage.used_tokens() >= tokens

    return holds
