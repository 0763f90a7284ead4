"""What all inference requests share: settings, counter, gate, servers, and tasks that outlive a request."""

import asyncio
from collections.abc import Callable, Coroutine

from proxy.api.background import Background
from proxy.api.gate import Gate
from proxy.api.keys import Door
from proxy.api.progress import Progress
from proxy.api.responses import Responses
from proxy.api.room import Room
from proxy.api.ticket import Ticket
from proxy.settings import Settings
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.tracing import NO_TRACER, Tracer
from proxy.tokens.sizer import Sizer
from proxy.upstream.backend import Backend
from proxy.upstream.exchange import Exchange


class Services:
    """One of each, for every request. `settings` are replaced when they are read again."""

    def __init__(
        self,
        settings: Settings,
        sizer: Sizer,
        gate: Gate,
        backend_of: Callable[[str], Backend],
        metrics: Metrics,
        door: Door,
        room: Room,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.settings = settings
        self.sizer = sizer
        self.gate = gate
        self.backend_of = backend_of  # by pool
        self.metrics = metrics
        self.door = door
        self.room = room
        self.tracer = tracer
        self.progress = Progress(gate)
        self.responses = Responses()
        self.background = Background(gate, backend_of, sizer, metrics, self.responses)
        self._tasks: set[asyncio.Task[None]] = set()

    def let_go(self, pool: str, ticket: Ticket, exchange: Exchange | None) -> None:
        """Have the engine drop a request; its charge drains until that is confirmed."""
        self.spawn(self._let_go(self.backend_of(pool), ticket, exchange))

    async def _let_go(self, backend: Backend, ticket: Ticket, exchange: Exchange | None) -> None:
        try:
            if exchange is not None:
                await exchange.aclose()
            if exchange is None or not exchange.observed.ended:
                self.metrics.abort()
            await backend.abort(ticket.request.rid)
        finally:
            self.gate.finish(ticket, completed=False)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` beside the requests; `close` ends it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what still runs beside requests. The backends are closed: nothing is left to wait for."""
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait(self._tasks)
