"""One server with one proxy before it, clients that come and go, and an eye on both ledgers."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from tests.load.client import ask
from tests.load.http1 import BadAnswer
from tests.load.outcome import Outcome
from tests.load.proxy import ProxyServer
from tests.load.sampler import Sample, end_task, read_sample
from tests.load.workload import Ask
from tests.sglang.server import MODEL_NAME, SGLangServer

WATCH_SECONDS = 0.03
SKEW_SECONDS = 0.5  # between what the two sides tell: they are asked one after the other


class Timeout(AssertionError):
    """Something that had to come true did not, in the time it had."""


class Visitor:
    """A client with one request under way; its outcome's times are on time.monotonic."""

    def __init__(self, base_url: str, wanted: Ask, body: bytes) -> None:
        self.outcome = Outcome.of(wanted, started_at=time.monotonic())
        self._leaving = asyncio.Event()
        self._task = asyncio.create_task(ask(base_url, body, self.outcome, leave=self._leaving))

    async def leave(self) -> float:
        """Goes away, and says when."""
        self._leaving.set()
        await self._task
        return time.monotonic()

    async def end(self) -> Outcome:
        """Waits for the whole answer."""
        await self._task
        return self.outcome

    async def was_sent(self) -> bool:
        return self.outcome.sent_at is not None

    async def streams(self) -> bool:
        return self.outcome.first_at is not None

    async def has_ended(self) -> bool:
        return self._task.done()


@dataclass(slots=True)
class Watch:
    """What engine and proxy said of themselves; times on time.monotonic."""

    engine: list[Sample] = field(default_factory=list)
    committed: list[tuple[float, float]] = field(default_factory=list)

    def uses_after(self, at: float) -> list[Sample]:
        return [sample for sample in self.engine if sample.at >= at and sample.used_tokens > 0]

    def most_used(self) -> int:
        return max((sample.used_tokens for sample in self.engine), default=0)

    def longest_engine_queue(self) -> int:
        return max((sample.waiting for sample in self.engine), default=0)

    def most_committed(self) -> float:
        return max((tokens for _, tokens in self.committed), default=0.0)

    def least_committed(self) -> float:
        return min((tokens for _, tokens in self.committed), default=0.0)

    def most_uncovered(self) -> float:
        """The largest part of the engine's use that no charge of the proxy stood for."""
        worst = 0.0
        for sample in self.engine:
            near = [tokens for at, tokens in self.committed if abs(at - sample.at) <= SKEW_SECONDS]
            if near:
                worst = max(worst, sample.used_tokens - max(near))
        return worst


class Stage:
    """Server and proxy with a watch on them; `async with` starts and ends the watch."""

    def __init__(self, server: SGLangServer, proxy: ProxyServer, seed: int = 1000) -> None:
        self.server = server
        self.proxy = proxy
        self.watch = Watch()
        self._seed = seed

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Self]:
        """Samples both sides often while the block runs, beginning with an empty watch."""
        self.watch = Watch()
        tasks = [asyncio.create_task(self._watch_engine()), asyncio.create_task(self._watch_proxy())]
        try:
            yield self
        finally:
            for task in tasks:
                await end_task(task)

    async def _watch_engine(self) -> None:
        while True:
            with contextlib.suppress(OSError, BadAnswer):  # a dead engine does not answer
                self.watch.engine.append(await read_sample(self.server.base_url, 0.0))
            await asyncio.sleep(WATCH_SECONDS)

    async def _watch_proxy(self) -> None:
        while True:
            committed = (await self.proxy_metrics()).get("sglang_proxy_committed_tokens", 0.0)
            self.watch.committed.append((time.monotonic(), committed))
            await asyncio.sleep(2 * WATCH_SECONDS)

    def visit(self, kind: str, prompt_tokens: int, max_tokens: int) -> Visitor:
        """Sends a request, never the same twice, from a client of its own."""
        self._seed += 1
        wanted = Ask(kind, prompt_tokens, max_tokens, self._seed)
        return Visitor(self.proxy.base_url, wanted, wanted.body(self.server.vocabulary, MODEL_NAME))

    async def proxy_metrics(self) -> dict[str, float]:
        return await asyncio.to_thread(self.proxy.metrics)

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
        """Waits for a condition. Raises Timeout, naming it, when it does not come true."""
        deadline = time.monotonic() + seconds
        while not await holds():
            if time.monotonic() > deadline:
                raise Timeout(f"not within {seconds:g} s: {what}")
            await asyncio.sleep(WATCH_SECONDS)

    async def queued_in_proxy(self) -> int:
        return int((await self.proxy_metrics()).get("sglang_proxy_queue_requests", 0.0))

    async def is_idle(self) -> bool:
        """Nothing runs, waits or is charged anywhere."""
        sample = await read_sample(self.server.base_url, 0.0)
        ledger = await asyncio.to_thread(self.proxy.ledger)
        return sample.running + sample.waiting + sample.used_tokens == 0 and not any(ledger.values())

    async def used_tokens(self) -> int:
        return (await read_sample(self.server.base_url, 0.0)).used_tokens
