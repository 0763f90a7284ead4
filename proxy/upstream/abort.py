"""Ending requests at the server, by the rules its tokenizer and scheduler impose.

SGLang drops an abort that comes before the scheduler knows the request, in some versions for
good: so an abort waits until the request must have arrived there. Closing the connection early
is slower (2.6 to 7 s until noticed), so it stays open until the abort was sent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import httpx

from proxy.admission.types import LoadSample
from proxy.upstream.call import Call
from proxy.upstream.exchange import Exchange
from proxy.upstream.link import Link, reason_of
from proxy.upstream.load import is_idle, work_seen
from proxy.upstream.sglang import ABORT_PATH, Route

logger = logging.getLogger(__name__)

# The tokenizer's pace; an abort waits for twice the time it should need.
TOKENIZE_SECONDS_PER_TOKEN = 3e-6
_PATIENCE_FACTOR = 2.0
# Parsing, templates and hand-over of the smallest request.
_LEAST_PATIENCE_SECONDS = 0.1
# This much of a prompt must show up as new work at the scheduler to call it arrived.
_ARRIVED_SHARE = 0.8
# After this the charge is given back whatever the server says.
CONFIRM_SECONDS = 10.0
# An abort that came too early after all is repeated; one that took effect makes this a no-op.
_REPEAT_SECONDS = 0.5
# What cannot be aborted by its id ends with its connection; the ids that can be go first.
_CLOSE_AFTER_SECONDS = 0.2
# A running chunk ends first: only samples younger than the abort by this much count.
_SETTLE_SECONDS = 0.15
_POST_SECONDS = 5.0
_LARGEST_BURST = 16
_LOOK_SECONDS = 0.03


class Server(Protocol):
    """What aborting needs of the backend."""

    link: Link
    clock: Callable[[], float]

    def urge(self) -> None:
        """Poll soon and often for a moment."""

    def latest(self, pool: str) -> LoadSample | None:
        """The newest load sample of a pool."""

    def next_sample(self, seconds: float) -> Awaitable[None]:
        """Returns when a sample has come, or after `seconds`."""

    def others_on_their_way(self, exchange: Exchange) -> int:
        """Prompt tokens of other requests that may reach the scheduler after `exchange.baseline`."""


class Aborts:
    """The aborts under way, each a task of its own that outlives whoever asked for it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._blind: set[asyncio.Task[None]] = set()
        self._hurry = asyncio.Event()

    def start(self, exchange: Exchange) -> None:
        """Takes the exchange over: aborts it, waits for the end, closes it."""
        key = exchange.call.rid
        if key in self._tasks:
            return
        exchange.take()
        task = asyncio.create_task(self._run(exchange), name=f"abort {exchange.rid}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def start_blind(self, call: Call, route: Route | None, rid: str, sent_at: float) -> None:
        """Aborts an attempt whose connection is gone, once it must have arrived if it ever did."""
        task = asyncio.create_task(self._run_blind(call, route, rid, sent_at), name=f"abort {rid}")
        self._blind.add(task)
        task.add_done_callback(self._blind.discard)

    async def join(self, rid: str) -> None:
        """Returns when the abort of this request is confirmed or given up; at once if there is none."""
        task = self._tasks.get(rid)
        if task is not None:
            await asyncio.wait({task})

    async def close(self, seconds: float) -> None:
        """Sends what is still pending at once, waits up to `seconds`, then cancels."""
        self._hurry.set()
        tasks = {*self._tasks.values(), *self._blind}
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=seconds)
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending)

    # --- one abort

    async def _run(self, exchange: Exchange) -> None:
        drain: asyncio.Task[None] | None = None
        try:
            if exchange.route is None or not exchange.delivered:
                return  # nothing runs there: an incomplete request is dropped with its connection
            drain = asyncio.create_task(exchange.drain(), name=f"drain {exchange.rid}")
            await self._until_arrived(exchange)
            await self._until_ended(exchange)
        finally:
            if drain is not None:
                drain.cancel()
                await asyncio.wait({drain})
            await exchange.close()

    async def _run_blind(self, call: Call, route: Route | None, rid: str, sent_at: float) -> None:
        rest = sent_at + patience_seconds(call.prompt_tokens) - self._server.clock()
        if rest > 0:
            await _wait(self._hurry, rest)
        await self._post(wire_rids(route, rid, call.sequences))

    async def _until_arrived(self, exchange: Exchange) -> None:
        """Until the scheduler must know the request."""
        server = self._server
        while not self._hurry.is_set():
            if exchange.has_arrived() or exchange.has_ended():
                return
            sent_at = exchange.sent_at
            patience = patience_seconds(exchange.call.prompt_tokens)
            if sent_at is None or server.clock() >= sent_at + patience or self._arrived(exchange, sent_at):
                return
            server.urge()
            await server.next_sample(_LOOK_SECONDS)

    def _arrived(self, exchange: Exchange, sent_at: float) -> bool:
        """Whether a fresh sample shows as much new prefill work as this request brings."""
        sample, baseline = self._server.latest(exchange.call.pool), exchange.baseline
        if sample is None or baseline is None or sample.at <= sent_at:
            return False
        before, now = work_seen(baseline), work_seen(sample)
        expected = exchange.call.prompt_tokens * _ARRIVED_SHARE + self._server.others_on_their_way(exchange)
        return before is not None and now is not None and expected > 0 and now - before >= expected

    async def _until_ended(self, exchange: Exchange) -> None:
        server = self._server
        begun_at = server.clock()
        deadline = begun_at + CONFIRM_SECONDS
        call, route = exchange.call, exchange.route
        by_rid = route is not None and route.rid_field is not None and call.sequences == 1
        while not exchange.has_ended():
            if not await self._post(wire_rids(route, exchange.rid, call.sequences)):
                return  # the server is gone, and the request with it
            posted_at = server.clock()
            await _wait(exchange.over, _REPEAT_SECONDS if by_rid else _CLOSE_AFTER_SECONDS)
            if exchange.has_ended():
                return
            if not by_rid:
                await exchange.close()
            streaming = exchange.observed.first_token_at is not None
            if exchange.over.is_set() and await self._gone(
                call.pool,
                posted_at,
                begun_at if streaming else posted_at,
                noticed_soon=by_rid or streaming,
            ):
                return
            if server.clock() >= deadline:
                logger.warning("abort of %s not confirmed within %g s", exchange.rid, CONFIRM_SECONDS)
                return

    async def _gone(self, pool: str, posted_at: float, ran_at: float, *, noticed_soon: bool) -> bool:
        """With the connection gone only load can tell: a pool that was idle after the request ran
        there, or (where the server reacts at once) two samples younger than the abort."""
        server = self._server
        until = server.clock() + _REPEAT_SECONDS * 2
        first: float | None = None
        while server.clock() < until and not self._hurry.is_set():
            server.urge()
            await server.next_sample(_LOOK_SECONDS)
            sample = server.latest(pool)
            if sample is None:
                continue
            if sample.at > ran_at and is_idle(sample):
                return True
            if noticed_soon and sample.at > posted_at + _SETTLE_SECONDS:
                if first is not None and sample.at > first + _LOOK_SECONDS:
                    return True
                first = sample.at if first is None else first
        return self._hurry.is_set()

    async def _post(self, rids: Iterable[str]) -> bool:
        """Asks the server to abort these. False when it cannot be reached at all."""
        waiting = list(rids)
        while waiting:
            burst, waiting = waiting[:_LARGEST_BURST], waiting[_LARGEST_BURST:]
            if not all(await asyncio.gather(*(self._post_one(rid) for rid in burst))):
                return False
        return True

    async def _post_one(self, rid: str) -> bool:
        body = b'{"rid":"%b"}' % rid.encode()
        try:
            response = await self._server.link.post(ABORT_PATH, body, seconds=_POST_SECONDS, admin=True)
        except httpx.ConnectError:
            return False
        except (httpx.TransportError, TimeoutError) as error:
            logger.warning("abort of %s: %s", rid, reason_of(error))
            return True
        if response.status_code in (401, 403):
            logger.warning("the server refuses our aborts (%d): set its admin key", response.status_code)
        return True


def patience_seconds(prompt_tokens: int) -> float:
    """How long after sending a request surely has reached the scheduler."""
    return max(prompt_tokens * TOKENIZE_SECONDS_PER_TOKEN * _PATIENCE_FACTOR, _LEAST_PATIENCE_SECONDS)


def wire_rids(route: Route | None, rid: str, sequences: int) -> list[str]:
    """Every id under which the server may run a request: of a batch one for each item.

    `n` > 1 draws fresh ids that nobody knows; then these match nothing, which is no error.
    """
    whole = (route.rid_prefix if route else "") + rid
    return [whole, *(f"{whole}_{item}" for item in range(sequences) if sequences > 1)]


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
