"""Knowing one server: found, read regularly, declared down for good reasons only, found again."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import httpx

from proxy.admission.types import LoadSample, PoolFacts
from proxy.backend_spec import BackendSpec
from proxy.upstream.discovery import Discovery, LoadSource, discover
from proxy.upstream.errors import UpstreamUnreachable
from proxy.upstream.link import Link, reason_of
from proxy.upstream.sglang import METRICS_PATH, MODELS_PATH, RankLoad, ServerInfo, parse_metrics

logger = logging.getLogger(__name__)

# A server that tokenizes answers nobody for seconds (5.8 s seen): late is not dead.
_POLL_TIMEOUT_SECONDS = 5.0
_LATE_POLLS_UNTIL_DOWN = 3
_LATE_SECONDS_UNTIL_DOWN = 10.0
# While urged: often enough to see a request arrive between two chunks.
_URGED_POLL_SECONDS = 0.03
_URGE_LASTS_SECONDS = 1.0
# Looking for a lost server: soon at first, and never rarer than this.
_FIRST_RETRY_SECONDS = 0.25
_LAST_RETRY_SECONDS = 0.5
# /metrics costs the server tens of milliseconds: only for what nothing else says.
_METRICS_SECONDS = 5.0
# A server that reports no load is only asked whether it lives.
_LIVENESS_SECONDS = 1.0


class PoolListener(Protocol):
    """Hears of pools. Called on the event loop; must not block or raise."""

    def pool_up(self, pool: str, facts: PoolFacts) -> None:
        """Discovered, or rediscovered after a restart (then without a `pool_down` in between, perhaps)."""

    def pool_down(self, pool: str, reason: str) -> None:
        """It cannot take work. Comes again when the reason changes."""

    def load(self, pool: str, sample: LoadSample) -> None:
        """A fresh reading."""


class _Restarted(Exception):
    """What the server reports cannot come from the process that was discovered."""


class Poller:
    """Runs as one task. Everything it learns goes to the listener, the newest also stays here."""

    def __init__(
        self,
        spec: BackendSpec,
        link: Link,
        listener: PoolListener,
        *,
        poll_seconds: float,
        clock: Callable[[], float],
        progress: Callable[[], int],
        on_up: Callable[[ServerInfo], None],
        on_down: Callable[[str], None],
    ) -> None:
        self.pools: tuple[str, ...] = (spec.name,)
        self.found: Discovery | None = None
        self._spec = spec
        self._link = link
        self._listener = listener
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._progress = progress  # grows while any stream of this server brings bytes
        self._on_up = on_up
        self._on_down = on_down
        self._latest: dict[str, LoadSample] = {}
        self._raw: dict[int, RankLoad] = {}
        self._rare: dict[int, RankLoad] = {}
        self._rare_due = 0.0
        self._urged_until = 0.0
        self._was_up = False
        self._wake = asyncio.Event()
        self._sampled = asyncio.Event()
        self._down_reason: str | None = None

    def urge(self) -> None:
        """Poll now, and often for a second."""
        now = self._clock()
        if now >= self._urged_until:
            self._wake.set()
        self._urged_until = now + _URGE_LASTS_SECONDS

    def latest(self, pool: str) -> LoadSample | None:
        """The newest sample of a pool since it was last discovered."""
        return self._latest.get(pool)

    async def next_sample(self, seconds: float) -> None:
        """Returns when a sample has come, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._sampled.wait()

    async def run(self) -> None:
        """Until cancelled. Nothing a server says ends it."""
        while True:
            try:
                found = await self._find()
                self._lose(await self._watch(found))
            except _Restarted:
                continue
            except Exception:
                logger.exception("%s: unexpected trouble while polling", self._spec.name)
                self._lose("says things the proxy does not understand")
                await asyncio.sleep(_LAST_RETRY_SECONDS)

    # --- finding it

    async def _find(self) -> Discovery:
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                found = await discover(self._link, self._spec)
            except UpstreamUnreachable as error:
                self._lose(error.reason)
                self._wake.clear()
                await self._sleep(pause)
                pause = min(pause * 1.5, _LAST_RETRY_SECONDS)
            else:
                self._up(found)
                return found

    def _up(self, found: Discovery) -> None:
        ranks = found.info.ranks
        name = self._spec.name
        pools = (name,) if len(ranks) == 1 else tuple(f"{name}/{rank}" for rank in range(len(ranks)))
        for pool in self.pools:
            if self._was_up and pool not in pools:
                self._listener.pool_down(pool, "restarted with other ranks")
        self.pools, self.found, self._down_reason = pools, found, None
        self._was_up = True
        self._latest.clear()
        self._raw.clear()
        self._rare.clear()
        self._rare_due = 0.0
        self._on_up(found.info)
        for pool, facts in zip(pools, ranks, strict=True):
            logger.info("%s is up: %d tokens, SGLang %s", pool, facts.pool_tokens, facts.version or "unknown")
            self._listener.pool_up(pool, replace(facts, tier=self._spec.tier))

    def _lose(self, reason: str) -> None:
        if reason == self._down_reason:
            return
        was_up = self.found is not None
        self._down_reason, self.found = reason, None
        logger.warning("%s is down: %s", self._spec.name, reason)
        for pool in self.pools:
            self._listener.pool_down(pool, reason)
        if was_up:
            self._on_down(reason)

    # --- watching it

    async def _watch(self, found: Discovery) -> str:
        """Polls until the server is down; returns why. Raises _Restarted."""
        late, good_at, progress = 0, self._clock(), self._progress()
        while True:
            self._wake.clear()
            try:
                await self._poll(found)
                await self._read_rare(found)
                late, good_at = 0, self._clock()
            except httpx.ConnectError as error:
                return reason_of(error)
            except (httpx.TransportError, TimeoutError, _BadPoll) as error:
                late += 1
                logger.info("%s: poll failed: %s", self._spec.name, reason_of(error))
                before, progress = progress, self._progress()
                if progress != before:  # streams go on: it is busy, not dead
                    late, good_at = 0, self._clock()
                silent_seconds = self._clock() - good_at
                if late >= _LATE_POLLS_UNTIL_DOWN and silent_seconds >= _LATE_SECONDS_UNTIL_DOWN:
                    return f"no useful answer for {silent_seconds:.0f} s: {reason_of(error)}"
            await self._pause(found.loads)

    async def _pause(self, source: LoadSource | None) -> None:
        usual = self._poll_seconds if source else max(self._poll_seconds, _LIVENESS_SECONDS)
        urged = self._clock() < self._urged_until
        await self._sleep(min(usual, _URGED_POLL_SECONDS) if urged else usual)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _poll(self, found: Discovery) -> None:
        source = found.loads
        response = await self._ask(source.path if source else MODELS_PATH)
        received_at = self._clock()
        if source is None:
            return
        for load in source.parse(response.content):
            self._check_same_server(found, load)
            self._deliver(load, received_at)
        self._sampled.set()
        self._sampled.clear()

    async def _read_rare(self, found: Discovery) -> None:
        """What only /metrics says: the engine's output ratio and its retractions."""
        from_metrics = found.loads is not None and found.loads.path == METRICS_PATH
        if not found.info.metrics_enabled or from_metrics or self._clock() < self._rare_due:
            return
        self._rare_due = self._clock() + _METRICS_SECONDS
        response = await self._ask(METRICS_PATH)
        self._rare = {load.rank: load for load in parse_metrics(response.content)}

    async def _ask(self, path: str) -> httpx.Response:
        try:
            response = await self._link.get(path, seconds=_POLL_TIMEOUT_SECONDS)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            # an idle connection closed under us, or a dying server: a new connection tells
            response = await self._link.get(path, seconds=_POLL_TIMEOUT_SECONDS)
        if response.status_code != 200:
            raise _BadPoll(f"{path.partition('?')[0]} answered {response.status_code}")
        return response

    def _check_same_server(self, found: Discovery, load: RankLoad) -> None:
        if load.rank >= len(found.info.ranks):
            raise _Restarted
        before = self._raw.get(load.rank)
        self._raw[load.rank] = load
        if before is None:
            return
        total, total_before = load.prefill_tokens_total, before.prefill_tokens_total
        shrunk = total is not None and total_before is not None and total < total_before
        if shrunk or load.pool_tokens != before.pool_tokens:
            logger.warning("%s was restarted", self._spec.name)
            raise _Restarted

    def _deliver(self, load: RankLoad, received_at: float) -> None:
        pool, rare = self.pools[load.rank], self._rare.get(load.rank, load)
        sample = LoadSample(
            at=received_at - load.age_seconds,
            used_tokens=load.used_tokens,
            running=load.running,
            waiting=load.waiting,
            waiting_uncached_tokens=load.waiting_uncached_tokens,
            prefill_tokens_total=load.prefill_tokens_total,
            prefill_busy_seconds_total=load.prefill_busy_seconds_total,
            new_token_ratio=rare.new_token_ratio,
            retractions_total=rare.retractions_total,
        )
        self._latest[pool] = sample
        self._listener.load(pool, sample)


class _BadPoll(Exception):
    """A poll got an answer it cannot use."""
