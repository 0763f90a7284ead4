"""One SGLang server: found and polled, sent to, aborted at, lost and found again."""

import asyncio
import time
from collections.abc import Callable

import httpx
import orjson

from proxy.admission.types import LoadSample
from proxy.backend_spec import BackendSpec
from proxy.upstream.abort import Aborts, patience_seconds
from proxy.upstream.body import screen
from proxy.upstream.call import Call
from proxy.upstream.errors import UpstreamUnreachable
from proxy.upstream.exchange import Exchange
from proxy.upstream.link import Link
from proxy.upstream.poll import Poller, PoolListener
from proxy.upstream.sglang import (
    DP_RANK_FIELDS,
    PRIORITY_FIELD,
    USAGE_FIELD,
    USAGE_VALUE,
    Route,
    ServerInfo,
    route_of,
)
from proxy.upstream.sse import EventPace

# On shutdown: to send the aborts of what still runs.
_CLOSE_SECONDS = 2.0


class Backend:
    """What the rest of the proxy sees of one server. Belongs to one event loop.

    `start` returns at once: a server that is down is looked for in the background, and the
    listener hears of it. `close` leaves no task and no connection in use behind.
    """

    def __init__(
        self,
        spec: BackendSpec,
        *,
        listener: PoolListener,
        client: httpx.AsyncClient,
        poll_seconds: float = 0.25,
        connect_seconds: float = 5.0,
        stall_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.clock = clock
        self.stall_seconds = stall_seconds
        self.pace = EventPace()
        self.link = Link(spec, client, connect_seconds=connect_seconds, stall_seconds=stall_seconds)
        self._exchanges: set[Exchange] = set()
        self._settled_count = 0
        self._aborts = Aborts(self)
        self._poller = Poller(
            spec,
            self.link,
            listener,
            poll_seconds=poll_seconds,
            clock=clock,
            progress=self._progress,
            on_up=self._learn,
            on_down=self._give_up_waiting,
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def pools(self) -> tuple[str, ...]:
        """Pool ids: the backend's name, or `name/rank` where it has several DP ranks."""
        return self._poller.pools

    def rank_of(self, pool: str) -> int | None:
        """The DP rank of a pool; None where there is only one, or none of that name any more."""
        return self.pools.index(pool) if len(self.pools) > 1 and pool in self.pools else None

    @property
    def info(self) -> ServerInfo | None:
        """What the server said of itself; None while it is down."""
        return self._poller.found.info if self._poller.found else None

    async def start(self) -> None:
        """Begins to look for the server and to poll it."""
        self._task = asyncio.create_task(self._poller.run(), name=f"poll {self.name}")

    async def close(self) -> None:
        """Aborts what still runs (for two seconds at most) and stops."""
        for exchange in tuple(self._exchanges):
            self._aborts.start(exchange)
        await self._aborts.close(_CLOSE_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def urge(self) -> None:
        """Poll soon, and often for a moment: something is about to change there."""
        self._poller.urge()

    async def send(self, call: Call) -> Exchange:
        """Forwards a request. Returns when status, headers and (of a stream) the first event are here.

        Raises UpstreamUnreachable (with `sent`), UpstreamBusy or BodyRefused. When the caller is
        cancelled meanwhile, the request is aborted in the background.
        """
        exchange = Exchange(call, self._route(call), self, self.latest(call.pool))
        self._exchanges.add(exchange)
        try:
            await exchange.open()
        except UpstreamUnreachable:
            self.urge()
            raise
        return exchange

    async def abort(self, rid: str, *, sequences: int = 1) -> None:
        """Ends a request at the server; returns when that is confirmed, or after 10 s. Never raises.

        Goes on when the caller is cancelled. Whoever iterates the exchange gets no more bytes.
        `sequences` is what the Call said, and is not needed.
        """
        for exchange in tuple(self._exchanges):
            if exchange.call.rid == rid and not exchange.observed.ended:
                self._aborts.start(exchange)
        await self._aborts.join(rid)

    # --- for its exchanges

    def edit(self, call: Call, route: Route, rid: str) -> tuple[list[tuple[str, bytes]], bool]:
        """The keys to splice into the body, ours last, and whether they ask for a usage chunk."""
        overrides = screen(call.body) if call.overrides is None else call.overrides
        fields = [
            (name, route.priority_null if name == PRIORITY_FIELD else b"null")
            for name in overrides
            if name != USAGE_FIELD
        ]
        if (rank := self.rank_of(call.pool)) is not None:
            fields += [(name, b"%d" % rank) for name in DP_RANK_FIELDS]
        asks = (
            call.ask_usage
            and call.stream
            and route.usage_option
            and USAGE_FIELD not in overrides
            and not (self.info and self.info.usage_by_default)
        )
        if asks:
            fields.append((USAGE_FIELD, USAGE_VALUE))
        if call.input_ids is not None and route.ids_field is not None:
            fields.append((route.ids_field, b"[%b]" % call.input_ids))
        if route.rid_field is not None:
            fields.append((route.rid_field, orjson.dumps(route.rid_prefix + rid)))
        return fields, asks

    def lost(self, exchange: Exchange) -> None:
        """Nobody reads it any more."""
        self._aborts.start(exchange)
        if exchange.observed.error is not None:
            self.urge()

    def orphaned(self, call: Call, rid: str, sent_at: float) -> None:
        """An earlier attempt may have arrived under this id."""
        self._aborts.start_blind(call, self._route(call), rid, sent_at)

    def settled(self, exchange: Exchange) -> None:
        """No more bytes will come of it."""
        self._exchanges.discard(exchange)
        self._settled_count += 1

    # --- for aborts

    def latest(self, pool: str) -> LoadSample | None:
        """The newest load sample of a pool."""
        return self._poller.latest(pool)

    async def next_sample(self, seconds: float) -> None:
        """Returns when a sample has come, or after `seconds`."""
        await self._poller.next_sample(seconds)

    def others_on_their_way(self, exchange: Exchange) -> int:
        """Prompt tokens of other requests that may reach the scheduler after `exchange.baseline`."""
        baseline = exchange.baseline
        if baseline is None:
            return 0
        return sum(
            other.call.prompt_tokens
            for other in self._exchanges
            if other is not exchange
            and other.call.pool == exchange.call.pool
            and other.sent_at is not None
            and other.sent_at + patience_seconds(other.call.prompt_tokens) > baseline.at
        )

    # --- for the poller

    def _learn(self, info: ServerInfo) -> None:
        self.pace = EventPace(info.stream_interval_tokens)

    def _progress(self) -> int:
        return self._settled_count + sum(exchange.observed.generated_tokens for exchange in self._exchanges)

    def _give_up_waiting(self, reason: str) -> None:
        for exchange in tuple(self._exchanges):
            exchange.give_up(reason)

    def _route(self, call: Call) -> Route | None:
        return route_of(call.path) if call.method == "POST" else None
