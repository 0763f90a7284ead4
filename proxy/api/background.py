"""Responses in the background: their HTTP answer ends while the work goes on.

They stay charged until the server says that they have ended: the proxy asks for each, less and less
often, and listens in when clients ask. What a server does not know any more is over: one that was
started again has forgotten all of them.
"""

import asyncio
import logging
from collections.abc import Callable

from proxy.api.gate import Gate
from proxy.api.record import Record
from proxy.api.responses import PREFIX, Responses
from proxy.telemetry.metrics import Metrics, Outcome
from proxy.tokens.sizer import Sizer
from proxy.upstream.backend import Backend
from proxy.upstream.call import Call
from proxy.upstream.errors import BodyRefused, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.kept_response import Look, Standing, cancel, look

logger = logging.getLogger("proxy.background")

FIRST_LOOK_SECONDS = 0.25
LOOK_SHARE = 0.1  # of its age: so much longer than it works it is charged at most
RAREST_LOOK_SECONDS = 5.0
GONE_SECONDS = 10.0  # of refused connections: the server has ended, and its work with it
LONGEST_SECONDS = 3600.0  # then it is cancelled, and its place given back whatever the server says
SETTLE_SECONDS = 0.15  # the chunk under way when it was cancelled ends first
CLOSE_SECONDS = 2.0

_LOOK = Look(Standing.UNTOLD)
_OUTCOMES = {
    Standing.COMPLETED: Outcome.COMPLETED,
    Standing.FAILED: Outcome.FAILED,
    Standing.CANCELLED: Outcome.DISCONNECTED,
}


class Background:
    """All that run now."""

    def __init__(
        self,
        gate: Gate,
        backend_of: Callable[[str], Backend],
        sizer: Sizer,
        metrics: Metrics,
        responses: Responses,
    ) -> None:
        self.gate = gate
        self.backend_of = backend_of
        self.sizer = sizer
        self.metrics = metrics
        self.responses = responses
        self.running: dict[str, Detached] = {}  # by id
        self.longest_seconds = LONGEST_SECONDS
        self.gone_seconds = GONE_SECONDS
        self.closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, work: "Detached", *, told: bool) -> None:
        """Its place is given back when it has ended. `told`: its client has the answer with its id."""
        work.taken = True
        task = asyncio.create_task(work.run(told=told), name="response in the background")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def seen(self, name: str, found: Look) -> None:
        """A server has told a client how one of them stands. A refusal may be about how it was asked."""
        if name in self.running:
            self.running[name].tell(_LOOK if found.standing is Standing.UNKNOWN else found)

    async def close(self) -> None:
        """Cancels what still runs, within two seconds: nobody could ask for it any more."""
        self.closing = True
        for work in self.running.values():
            work.tell(_LOOK)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


class Detached:
    """One of them, from its sending to its end."""

    __slots__ = ("_all", "_record", "_sending", "_told", "taken")

    def __init__(self, background: Background, record: Record) -> None:
        self._all = background
        self._record = record
        self.taken = False  # by `Background`: whoever sent it has nothing more to do with it
        self._sending: asyncio.Task[Exchange] | None = None
        self._told: asyncio.Queue[Look] = asyncio.Queue(maxsize=1)

    async def send(self, call: Call) -> Exchange:
        """As `Backend.send`; but a client that leaves meanwhile does not end it, since only the answer
        tells the id that the work can be cancelled by."""
        sending = self._all.backend_of(call.pool).send(call)
        self._sending = asyncio.create_task(sending, name=f"send {call.rid}")
        return await asyncio.shield(self._sending)

    @property
    def taken_on(self) -> bool:
        """Whether the server has begun with it, or may yet do so."""
        sending = self._sending
        if sending is None or not sending.done():
            return sending is not None
        return not sending.cancelled() and sending.exception() is None and sending.result().status == 200

    def answered_by(self, sent_bytes: int) -> bool:
        """Whether so much of the answer is all of it: many clients leave as soon as they have that."""
        if self._sending is None or not self._sending.done():
            return False
        length = self._sending.result().header(b"content-length") or b""
        return length.isdigit() and sent_bytes >= int(length)

    def tell(self, found: Look) -> None:
        """How it stands, as somebody else was told; UNTOLD: look for yourself."""
        if self._told.full():
            self._told.get_nowait()
        self._told.put_nowait(found)

    async def run(self, *, told: bool) -> None:
        """Waits for its end, then gives its place back and writes its record."""
        record, everything = self._record, self._all
        ticket, pool = record.ticket, record.pool
        assert ticket is not None
        assert pool is not None
        assert self._sending is not None
        record.outcome, record.reason = Outcome.BROKEN, "shutdown"
        backend = everything.backend_of(pool)
        name = ""
        try:
            exchange = await self._sending
            await exchange.aclose()
            name = PREFIX + exchange.rid
            everything.running[name] = self
            await self._until_ended(backend, name, told=told)
        except (UpstreamError, BodyRefused) as error:
            record.reason = str(error)
            everything.gate.leave(ticket)
            await backend.abort(ticket.request.rid)
        finally:
            everything.running.pop(name, None)
            everything.gate.finish(ticket, completed=record.outcome is Outcome.COMPLETED)
            record.write(everything.metrics, everything.sizer)

    # --- inside ----------------------------------------------------------------------------------

    async def _until_ended(self, backend: Backend, name: str, *, told: bool) -> None:
        clock = self._all.gate.clock
        begun_at = reached_at = clock()
        why = "" if told else "its client left before it knew the id"
        while not why:
            found = await self._next(backend, name, clock() - begun_at)
            now = clock()
            if found.standing is not Standing.UNREACHABLE:
                reached_at = now
            if self._is_over(found, name):
                if found.standing is Standing.CANCELLED:
                    await self._settle(backend)
                return
            if now - reached_at >= self._all.gone_seconds:
                self._record.reason = "the server is gone"
                return
            if self._all.closing:
                why = "shutdown"
            elif now - begun_at >= self._all.longest_seconds:
                why = f"it ran for more than {self._all.longest_seconds:.0f} s"
        logger.info("%s is cancelled: %s", name, why)
        self._all.metrics.abort()
        self._is_over(await cancel(backend.link, name), name)
        self._record.reason = why
        if not self._all.closing:
            await self._settle(backend)

    async def _next(self, backend: Backend, name: str, age_seconds: float) -> Look:
        """How it stands, after a pause, or as soon as a client is told."""
        pause = min(max(FIRST_LOOK_SECONDS, LOOK_SHARE * age_seconds), RAREST_LOOK_SECONDS)
        found = _LOOK
        try:
            async with asyncio.timeout(pause):
                found = await self._told.get()
        except TimeoutError:
            pass
        if found.standing is Standing.UNTOLD and not self._all.closing:
            found = await look(backend.link, name)
        return found

    def _is_over(self, found: Look, name: str) -> bool:
        """Takes in how it stands."""
        record = self._record
        if found.standing is Standing.UNKNOWN:
            record.reason = "the server does not know it any more"
            return True
        outcome = _OUTCOMES.get(found.standing)
        if outcome is None:
            return False
        record.outcome, record.reason = outcome, None
        if outcome is not Outcome.COMPLETED:
            record.reason = found.standing.value
        usage = found.usage
        if usage is not None and record.ticket is not None:
            record.ticket.observed.usage = usage
            self._all.responses.note(record, name.removeprefix(PREFIX))
        return True

    async def _settle(self, backend: Backend) -> None:
        """Cancelled is not yet let go: the charge drains until a poll can show it."""
        ticket, pool = self._record.ticket, self._record.pool
        assert ticket is not None
        self._all.gate.leave(ticket)
        cancelled_at = self._all.gate.clock()
        while self._all.gate.clock() < cancelled_at + CLOSE_SECONDS:
            sample = backend.latest(pool or "")
            if sample is not None and sample.at > cancelled_at + SETTLE_SECONDS:
                return
            backend.urge()
            await backend.next_sample(SETTLE_SECONDS)
