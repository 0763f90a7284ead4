"""One request under way at a server: sent, its answer forwarded as it comes, and watched."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from proxy.admission.types import LoadSample
from proxy.upstream.answer import AnswerBytes
from proxy.upstream.call import Call, Observed
from proxy.upstream.errors import UpstreamBroken, UpstreamBusy, UpstreamUnreachable
from proxy.upstream.link import Headers, can_be_forwarded, end_to_end
from proxy.upstream.patience import Patience
from proxy.upstream.sender import Desk, Sender
from proxy.upstream.sglang import Route
from proxy.upstream.sse import EventPace, early_error, error_message, has_event
from proxy.upstream.watch import AnswerWatch

# A stream's first event is waited for whole, so that a failure can become a status.
_LARGEST_FIRST_EVENT_BYTES = 64 * 1024
_BUSY_STATUSES = (429, 503)
# How often whoever takes an exchange over looks whether its reader has let go.
_HANDOVER_SECONDS = 0.02


class Owner(Desk, Protocol):
    """What an exchange needs of its backend."""

    stall_seconds: float
    pace: EventPace

    def latest(self, pool: str) -> LoadSample | None:
        """The newest load sample of a pool."""

    def lost(self, exchange: "Exchange") -> None:
        """Nobody will read this unfinished exchange: abort it, then `close` it."""

    def settled(self, exchange: "Exchange") -> None:
        """No more bytes will come of it."""


class Exchange:
    """Iterate it for the answer's bytes, and close it (or leave its `async with`) in any case.

    Closing one that has not ended hands it to the backend, which aborts the request at the
    server and keeps the connection until then. Reading happens only when asked: a slow client
    slows the server, and nothing is buffered but the chunk in hand.
    """

    def __init__(self, call: Call, route: Route | None, owner: Owner, baseline: LoadSample | None) -> None:
        self.call = call
        self.route = route
        self.baseline = baseline  # the pool's load when this was sent
        self.status = 0
        self.headers: Headers = []
        self.early_error: tuple[int, str, str] | None = None  # status, message, type of a failed 200 stream
        self.takes_events = False  # its bytes are server-sent events: one of ours may follow them
        self.observed = Observed()
        self.first_byte_at: float | None = None
        self.over = asyncio.Event()  # no more bytes will come: complete, broken or closed
        self._owner = owner
        self._sender = Sender(call, route, owner)
        self._on_first_token: Callable[[], None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._answer: AnswerBytes | None = None
        self._ready = b""
        self._watch: AnswerWatch | None = None
        self._taken = False
        self._given_up: str | None = None

    def header(self, name: bytes) -> bytes | None:
        """The answer's first header `name` (lower case), None when absent."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def rid(self) -> str:
        """The id it was sent under, without the route's prefix. A retry takes a fresh one."""
        return self._sender.attempt.rid

    @property
    def sent_at(self) -> float | None:
        """When it was handed to the transport: the first byte, later the last."""
        return self._sender.attempt.sent_at

    @property
    def delivered(self) -> bool:
        """All of it was handed to the transport."""
        return self._sender.attempt.delivered

    @property
    def on_first_token(self) -> Callable[[], None] | None:
        """Called once, on the event loop, when the first token passes; at once if it has passed."""
        return self._on_first_token

    @on_first_token.setter
    def on_first_token(self, callback: Callable[[], None] | None) -> None:
        self._on_first_token = callback
        if callback is not None and self.observed.first_token_at is not None:
            callback()

    # --- until the answer begins

    async def open(self) -> None:
        """Send, and wait for status, headers and (of a stream) the first event.

        Runs as a task of its own: when the caller is cancelled, the connection stays open until
        the request is aborted. Raises UpstreamUnreachable, UpstreamBusy or BodyRefused.
        """
        self._opening = asyncio.create_task(self._open(), name=f"open {self.rid}")
        patience = Patience(self.call, self._owner, self.give_up)
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if self._given_up is not None and self._opening.cancelled():
                self._abandon()
                raise UpstreamUnreachable(self._given_up, sent=self.sent_at is not None) from None
            self._abandon()
            raise
        except UpstreamUnreachable as error:
            if error.sent:
                self._abandon()
            else:
                self._settle()
            raise
        except Exception:
            await self.close()
            raise
        finally:
            patience.end()

    async def _open(self) -> None:
        try:
            response = await self._sender.send(lambda: self.route is not None and not self._taken)
        finally:
            # an answer may take minutes, and a body many megabytes
            self.call = self._sender.call = replace(self.call, body=b"", input_ids=None)
        answer = self._answer = AnswerBytes(response, self._owner.stall_seconds)
        self.first_byte_at = self._owner.clock()
        self.status = response.status_code
        self.headers = end_to_end(response.headers.raw)
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        # Without streaming SGLang answers only once the engine is done with the request.
        self.observed.ended = not streamed
        if not can_be_forwarded(self.status, self.headers):
            raise UpstreamUnreachable(f"an answer of status {self.status} that is not HTTP", sent=True)
        if self.route is None:
            return
        if self.status in _BUSY_STATUSES:
            raise UpstreamBusy(await self._reason(answer), status=self.status)
        if self.status == 200 and "content-encoding" not in response.headers:
            await self._begin(answer, self.route, streamed)

    async def _begin(self, answer: AnswerBytes, route: Route, streamed: bool) -> None:
        self._watch = AnswerWatch(
            route,
            self.observed,
            streamed=streamed,
            swallow_usage=streamed and self._sender.swallow_usage,
            sequences=self.call.sequences,
            pace=self._owner.pace,
            clock=self._owner.clock,
            on_token=self._first_token,
        )
        if streamed:
            if self._sender.swallow_usage:  # fewer bytes than announced will pass
                self.headers = [item for item in self.headers if item[0].lower() != b"content-length"]
            self.takes_events = self.header(b"content-length") is None
            await self._first_event(answer, self._watch)
        else:
            self.observed.first_token_at = self.first_byte_at
            self._first_token()

    async def _first_event(self, answer: AnswerBytes, watch: AnswerWatch) -> None:
        """Reads the first event whole. A failure becomes `early_error`, or UpstreamBusy."""
        seen = b""
        try:
            while not has_event(seen) and len(seen) < _LARGEST_FIRST_EVENT_BYTES:
                chunk = await answer.read()
                seen += chunk
                self._ready += watch.see(chunk)
        except StopAsyncIteration:
            self._ready += self._complete()
        except UpstreamBroken as error:
            self.observed.error = error.reason
            raise UpstreamUnreachable(error.reason, sent=True) from error
        failure = early_error(seen)
        if failure is None:
            return
        self.observed.ended = True
        self.observed.first_token_at = None
        self.observed.generated_tokens = 0
        self.observed.error = failure[1]
        if (await answer.rest())[1]:
            self._settle()
        if failure[0] in _BUSY_STATUSES:
            raise UpstreamBusy(failure[1], status=failure[0])
        self.early_error = failure

    async def _reason(self, answer: AnswerBytes) -> str:
        """Why the server refused, from the body of its answer."""
        content, _ = await answer.rest()
        return error_message(content) or f"status {self.status}"

    # --- while it is read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next bytes. Raises UpstreamBroken when the server dies, resets or falls silent, and when
        the proxy itself ends the request: a cut answer must not look like a whole one."""
        if self._ready:
            ready, self._ready = self._ready, b""
            return ready
        assert self._answer is not None
        while not (self._taken or self.over.is_set()):
            try:
                chunk = await self._answer.read()
            except StopAsyncIteration:
                chunk = self._complete()
                if chunk:
                    return chunk
                break
            except UpstreamBroken as error:
                self.observed.error = self.observed.error or error.reason
                self._abandon()
                raise
            if self._watch is not None:
                chunk = self._watch.see(chunk)
            if chunk:
                return chunk
        if self._taken:
            raise UpstreamBroken(self.observed.error or "ended by the proxy")
        raise StopAsyncIteration

    def _complete(self) -> bytes:
        """The body has ended as it should. Returns bytes that were still held."""
        rest = self._watch.finish() if self._watch else b""
        self.observed.ended = True
        self._settle()
        return rest

    def _first_token(self) -> None:
        if self._on_first_token is not None:
            self._on_first_token()

    # --- its end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Done with it. Returns at once also when it must be aborted: that goes on in the background."""
        if self._taken:
            return
        if self.observed.ended:
            await self.close()
        elif not self.over.is_set():
            self._abandon()

    def _abandon(self) -> None:
        if not self._taken:
            self._owner.lost(self)

    def _settle(self) -> None:
        if not self.over.is_set():
            self.over.set()
            self._watch = self._on_first_token = None  # they know us: nothing waits for a collection
            self._owner.settled(self)

    # --- for the backend, which aborts it

    def take(self) -> None:
        """From now on the backend reads; whoever iterates gets no more."""
        self._taken = True

    def give_up(self, reason: str) -> None:
        """It will not answer: if the answer has not begun, `open` raises UpstreamUnreachable."""
        if self._opening is not None and not self._opening.done():
            self._given_up = reason
            self._opening.cancel()

    def has_ended(self) -> bool:
        """Whether the engine is done with it."""
        return self.observed.ended

    def has_arrived(self) -> bool:
        """Whether an answer proves that the scheduler knows the request."""
        greeted = self.route is not None and self.route.greets
        return self.observed.first_token_at is not None or (self.first_byte_at is not None and not greeted)

    async def drain(self) -> None:
        """Reads the rest for what it says, until it is over. Raises nothing but cancellation."""
        if self._opening is not None:
            await asyncio.wait({self._opening})
            if self._opening.cancelled() or self._opening.exception() is not None:
                self._settle()
        while not self.over.is_set():
            answer = self._answer
            if answer is None or answer.cut:
                self._settle()
                break
            if answer.reading:
                await asyncio.sleep(_HANDOVER_SECONDS)
                continue
            try:
                chunk = await answer.read()
                if self._watch is not None:
                    self._watch.see(chunk)
            except StopAsyncIteration:
                self._complete()
            except UpstreamBroken:
                self._settle()

    async def close(self) -> None:
        """Lets the connection go: back to the pool where the body was complete, else closed."""
        if self._opening is not None and not self._opening.done():
            self._given_up = self._given_up or "aborted"
            self._opening.cancel()
            await asyncio.wait({self._opening})
            if not self._opening.cancelled():
                self._opening.exception()  # whoever waits in `open` has it too
        if self._answer is not None:
            await self._answer.close()
        self._settle()
