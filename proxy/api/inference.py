"""An inference request's whole way: read, size, ask for a place, send, stream, release.

One `Handler` serves all inference paths; one `_Flow` is one request. Whatever ends it, the last
lines of `Handler.serve` give its tokens back exactly once.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from functools import partial

from proxy.admission.types import Dispatch, Lane, Reason, Refuse, Request
from proxy.api import answers
from proxy.api.answers import Answer
from proxy.api.asgi import BodyTooLarge, ClientGone, Receive, Scope, Send, Watch, answer, read_body
from proxy.api.bounds import bounded, check_sequences
from proxy.api.gate import Gate
from proxy.api.headers import first, forwarded, request_id, wait_limit_seconds, with_ours
from proxy.api.keys import Door, Tenant
from proxy.api.room import NoRoom, Room
from proxy.api.slices import SlicedPrefill
from proxy.api.ticket import Ticket
from proxy.settings import Settings
from proxy.telemetry.logs import request_line
from proxy.telemetry.metrics import Metrics, Outcome, Phase
from proxy.telemetry.tracing import NO_TRACER, Facts, Tracer
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sized import Sized
from proxy.tokens.sizer import Sizer
from proxy.upstream.backend import Backend
from proxy.upstream.body import screen
from proxy.upstream.call import Call
from proxy.upstream.errors import (
    BodyRefused,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamError,
    UpstreamUnreachable,
)
from proxy.upstream.exchange import Exchange

logger = logging.getLogger("proxy.request")
RID_BYTES = 16  # 32 hex digits: one length, since SGLang aborts by prefix
LONGEST_SESSION = 128
SESSION_HEADERS = (b"x-session-id", b"x-smg-routing-key")
SCREEN_INLINE_BYTES = 262_144  # 2 ms at worst, 0.1 ms for usual text
SLICED_APIS = (Api.CHAT, Api.COMPLETIONS)  # those whose bodies the server tokenizes on request


class Handler:
    """Serves the inference endpoints over one gate."""

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

    async def serve(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens to it."""
        flow = _Flow(self, api, scope, send)
        try:
            await flow.run(receive)
        except ClientGone:
            flow.outcome, flow.status = Outcome.DISCONNECTED, 499
            self.metrics.disconnect(flow.left_in())
        except asyncio.CancelledError:
            # only shutting down does that, to those whose client does not read; the task ends here anyway
            flow.outcome, flow.reason = Outcome.BROKEN if flow.started else Outcome.FAILED, "shutdown"
        except Exception:
            logger.exception("request %s failed inside the proxy", flow.rid)
            flow.outcome = Outcome.BROKEN if flow.started else Outcome.FAILED
            if not flow.started:
                await flow.reply(answers.upstream_error(api, 500, "internal error of the proxy"))
        finally:
            flow.release()
            flow.record()


class _Flow:
    """One request's state on its way."""

    __slots__ = (
        "api",
        "arrived_at",
        "body",
        "exchange",
        "handler",
        "headers",
        "lane",
        "outcome",
        "overrides",
        "path",
        "phase",
        "pool",
        "reason",
        "request_id",
        "rid",
        "send",
        "share",
        "sized",
        "span",
        "started",
        "status",
        "tenant",
        "ticket",
        "wait_limit_seconds",
    )

    def __init__(self, handler: Handler, api: Api, scope: Scope, send: Send) -> None:
        self.handler = handler
        self.api = api
        self.send = send
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        query: bytes = scope["query_string"]
        self.path: str = scope["path"] + ("?" + query.decode("latin-1") if query else "")
        self.rid = secrets.token_hex(RID_BYTES)
        self.request_id = request_id(self.headers, self.rid)
        self.arrived_at = time.monotonic()
        self.span = handler.tracer.start(scope["path"], self.request_id, self.headers)
        self.tenant: Tenant | None = None
        self.wait_limit_seconds = 0.0
        self.overrides: tuple[str, ...] = ()
        self.body = b""
        self.share = handler.room.share()
        self.sized: Sized | None = None
        self.ticket: Ticket | None = None
        self.exchange: Exchange | None = None
        self.lane: Lane | None = None
        self.pool: str | None = None
        self.phase = Phase.READING
        self.outcome = Outcome.INVALID
        self.status = 0
        self.reason: str | None = None
        self.started = False

    # --- the way ---------------------------------------------------------------------------------

    async def run(self, receive: Receive) -> None:
        handler = self.handler
        settings = handler.settings
        self.tenant = handler.door.tenant_of(self.headers)
        if self.tenant is None:
            await self.reply(answers.unauthorized(self.api))
            return
        try:
            sized = self.sized = await self._read(receive)
        except NoRoom:
            await self._refuse(answers.no_room(self.api), Reason.QUEUE_FULL)
            return
        except BodyTooLarge as error:
            await self.reply(answers.body_too_large(self.api, error.limit_bytes))
            return
        except TimeoutError:
            await self.reply(answers.body_too_slow(self.api))
            return
        except (BadRequest, BodyRefused) as error:
            await self.reply(answers.bad_request(self.api, error.message, error.param))
            return
        self.wait_limit_seconds = wait_limit_seconds(
            self.headers, settings.max_queue_seconds, settings.max_queue_seconds_limit
        )
        async with Watch(receive):
            await asyncio.sleep(0)  # who left while the body was counted is noticed before it is sent
            await self._admitted(sized)

    async def _read(self, receive: Receive) -> Sized:
        """The body, counted and found fit to be forwarded."""
        handler = self.handler
        scope = {"headers": self.headers}
        body = self.body = await read_body(scope, receive, handler.settings.max_body_bytes, self.share)
        sized = await handler.sizer.size(self.api, body)
        check_sequences(sized.shape)
        self._check_ids(sized)
        large = len(body) > SCREEN_INLINE_BYTES
        self.overrides = await asyncio.to_thread(screen, body) if large else screen(body)
        return sized

    def _forget_body(self) -> None:
        """An answer may take minutes, and a body many megabytes."""
        self.body = b""
        self.share.drop()

    async def _admitted(self, sized: Sized) -> None:
        """Wait for the place, use it; after back-pressure wait again."""
        self.phase = Phase.QUEUED
        request, sliced = self._request(sized), None
        if request.sliceable:
            sliced = SlicedPrefill(
                self.rid,
                self.body,
                self.handler.gate,
                self.handler.backend_of,
                partial(self.handler.sizer.ids, self.api),
                self.handler.spawn,
            )
        ticket = self.ticket = self.handler.gate.submit(request, sliced)
        while True:
            decision = await ticket.decided()
            self.lane = decision.lane
            if isinstance(decision, Refuse):
                reply = answers.refused(self.api, decision, self.wait_limit_seconds)
                await self._refuse(reply, decision.reason)
                return
            self.phase = Phase.PREFILLING
            exchange = await self._send(decision, sized)
            if exchange is not None:
                break
            if self.status:
                return
            self.phase = Phase.QUEUED
        self.exchange = exchange
        self._forget_body()
        if ticket.sliced is not None:
            ticket.sliced.close()
        await self._stream(exchange, decision, ticket)

    async def _send(self, decision: Dispatch, sized: Sized) -> Exchange | None:
        """The answer's head; None when the request waits again, or was answered already."""
        handler, ticket = self.handler, self.ticket
        assert ticket is not None
        self.pool = decision.pool
        shape = sized.shape
        call = Call(
            method="POST",
            path=self.path,
            pool=decision.pool,
            rid=self.rid,
            headers=self.span.passed_on(
                forwarded(self.headers, authorization=handler.settings.forward_authorization)
            ),
            body=self.body,
            api=self.api,
            stream=shape.stream,
            ask_usage=shape.stream and not shape.wants_usage and self._calibrates(sized),
            sequences=shape.sequences,
            prompt_tokens=sized.prompt_tokens,
            overrides=self.overrides,
            input_ids=ticket.sliced.ids if ticket.sliced is not None else None,
        )
        try:
            return await handler.backend_of(decision.pool).send(call)
        except UpstreamBusy as error:
            if not self._again():
                await self._failed(error)
        except UpstreamUnreachable as error:
            if error.sent or not self._again():
                await self._failed(error)
        except BodyRefused as error:
            self.pool = None
            await self.reply(answers.bad_request(self.api, error.message, error.param))
        return None

    def _again(self) -> bool:
        """Nothing runs at the backend: back into the queue, until its turn comes again."""
        assert self.ticket is not None
        self.pool = None
        return self.handler.gate.requeue(self.ticket)

    async def _failed(self, error: UpstreamError) -> None:
        self.outcome, self.reason = Outcome.FAILED, error.reason
        message = "The backend failed before it answered."
        await self.reply(answers.upstream_error(self.api, 502, message, "upstream_failed"))

    async def _stream(self, exchange: Exchange, decision: Dispatch, ticket: Ticket) -> None:
        gate = self.handler.gate
        ticket.observed = exchange.observed
        exchange.on_first_token = lambda: gate.first_token(ticket)
        if exchange.early_error is not None:
            status, message, _ = exchange.early_error
            self.outcome = Outcome.INVALID if status < 500 else Outcome.FAILED
            await self.reply(answers.upstream_error(self.api, status, message))
            return
        self.status = exchange.status
        self.started = True
        self.phase = Phase.STREAMING
        await self.send(
            {
                "type": "http.response.start",
                "status": exchange.status,
                "headers": with_ours(exchange.headers, self._admission_headers(decision)),
            }
        )
        chunk = b""
        try:
            async for chunk in exchange:
                await self.send({"type": "http.response.body", "body": chunk, "more_body": True})
        except UpstreamBroken as error:
            self.outcome = Outcome.BROKEN
            self.reason = error.reason
            if exchange.takes_events:
                event = answers.stream_error(
                    self.api, "The backend failed while it was answering.", after=chunk
                )
                await self.send({"type": "http.response.body", "body": event})
            return  # without a last message the server cuts the connection: an incomplete body
        await self.send({"type": "http.response.body", "body": b""})
        self.outcome = Outcome.COMPLETED if exchange.status < 400 else Outcome.INVALID
        if exchange.observed.error is not None:
            self.outcome, self.reason = Outcome.BROKEN, exchange.observed.error

    # --- parts -----------------------------------------------------------------------------------

    def _request(self, sized: Sized) -> Request:
        shape = sized.shape
        tokens = max(1, sized.prompt_tokens)
        assert self.tenant is not None
        return Request(
            rid=self.rid,
            prompt_tokens=tokens,
            max_tokens=None if shape.max_tokens is None else bounded(shape.max_tokens),
            sequences=shape.sequences,
            model=shape.model,
            tenant=self.tenant.name,
            weight=self.tenant.weight,
            limits=self.tenant.limits,
            wait_limit_seconds=self.wait_limit_seconds,
            segments=sized.segments if shape.batch == 1 else (),
            ignore_eos=shape.ignore_eos,
            min_tokens=bounded(shape.min_tokens),
            sliceable=self._sliceable(sized),
            session=self._session(sized),
            uncertainty=max(0.0, 1.0 - sized.least_tokens / tokens),
        )

    def _session(self, sized: Sized) -> str:
        """The conversation's name, where the client gives one."""
        for name in SESSION_HEADERS:
            value = first(self.headers, name)
            if value:
                return value.decode("latin-1")[:LONGEST_SESSION]
        return (sized.shape.session or "")[:LONGEST_SESSION]

    def _sliceable(self, sized: Sized) -> bool:
        """One text prompt that nothing but its ids keys in the server's cache."""
        shape = sized.shape
        return (
            self.api in SLICED_APIS
            and sized.prompt_tokens > self.handler.settings.short_prefill_tokens
            and shape.sequences == 1
            and shape.media == 0
            and not shape.has_ids
            and not shape.cache_scope
        )

    def _check_ids(self, sized: Sized) -> None:
        """An id outside the vocabulary kills the whole server process."""
        if self.api is Api.CHAT and "input_ids" in sized.shape.fields:
            raise BadRequest("input_ids is not taken beside messages; use /generate", "input_ids")
        largest = sized.shape.largest_id
        if largest is None:
            return
        lines = self.handler.gate.controller.lines.values()
        own = self.handler.sizer.vocabulary_size
        vocabularies = [own] if own is not None else []
        vocabularies += [v for line in lines if (v := line.pool.facts.vocab_tokens) is not None]
        if vocabularies and largest >= min(vocabularies):
            raise BadRequest(
                f"token id {largest} is outside the vocabulary of {min(vocabularies)} tokens", "prompt"
            )

    def _calibrates(self, sized: Sized) -> bool:
        share = self.handler.settings.calibrate_streams
        if share <= 0:
            return False
        return self.handler.sizer.wants_usage(sized) or random.random() < share

    def _admission_headers(self, decision: Dispatch) -> list[tuple[bytes, bytes]]:
        return [
            (b"x-admission-lane", decision.lane.value.encode()),
            (b"x-admission-wait-ms", str(round(decision.waited_seconds * 1000)).encode()),
            (b"x-request-id", self.request_id.encode()),
        ]

    async def _refuse(self, reply: Answer, reason: Reason) -> None:
        self.outcome, self.reason = Outcome.REFUSED, reason.value
        self.handler.metrics.refused(reason)
        await self.reply(reply)

    async def reply(self, reply: Answer) -> None:
        self.status = reply.status
        self.started = True
        await answer(self.send, reply, self.request_id)

    # --- the end ---------------------------------------------------------------------------------

    def left_in(self) -> Phase:
        """What was going on when its client left."""
        queued = self.phase is Phase.QUEUED and self.ticket is not None
        return Phase.SLICING if queued and self.handler.gate.slicing(self.rid) else self.phase

    def release(self) -> None:
        """Give the place back: at once where the engine is done, else when the abort is through."""
        ticket, exchange, gate = self.ticket, self.exchange, self.handler.gate
        self._forget_body()
        if ticket is None or ticket.closed:
            return
        if self.pool is None:
            gate.leave_unsent(ticket)
        elif exchange is not None and exchange.over.is_set() and exchange.observed.ended:
            gate.finish(ticket, completed=self.outcome is Outcome.COMPLETED)
        else:
            gate.leave(ticket)
            self.handler.let_go(self.pool, ticket, exchange)

    def record(self) -> None:
        """One log line and the metrics of the request."""
        handler, sized, ticket = self.handler, self.sized, self.ticket
        tenant = self.tenant.name if self.tenant is not None else ""
        wait = ttft = None
        prompt, produced = (sized.prompt_tokens if sized else 0), 0
        if ticket is not None:
            usage = ticket.observed.usage
            produced = ticket.observed.generated_tokens
            if usage is not None:
                prompt = usage.prompt_tokens
                produced = usage.completion_tokens if usage.completion_tokens is not None else produced
                assert sized is not None
                handler.metrics.token_ratio(usage.prompt_tokens / max(1, sized.prompt_tokens))
                handler.sizer.observe(sized, usage.prompt_tokens)
            if ticket.dispatched_at is not None:
                wait = ticket.dispatched_at - ticket.arrived_at
            if ticket.first_token_at is not None:
                ttft = ticket.first_token_at - self.arrived_at
        handler.metrics.request_done(
            self.lane,
            self.outcome,
            wait_seconds=wait,
            ttft_seconds=ttft,
            prompt_tokens=prompt if ticket is not None and ticket.first_token_at is not None else 0,
            completion_tokens=produced,
            tenant=tenant or None,
        )
        request_line(
            logger,
            request_id=self.request_id,
            outcome=self.outcome.value,
            status=self.status,
            tenant=tenant,
            model=sized.shape.model if sized else "",
            lane=self.lane,
            prompt_tokens=prompt or None,
            completion_tokens=produced or None,
            wait_seconds=wait,
            ttft_seconds=ttft,
            backend=self.pool,
            reason=self.reason,
            trace_id=self.span.trace_id,
        )
        if self.span.recording:
            self.span.end(self._facts(tenant, prompt, produced, wait))

    def _facts(self, tenant: str, prompt: int, produced: int, wait: float | None) -> Facts:
        ticket, sized = self.ticket, self.sized
        return Facts(
            outcome=self.outcome.value,
            failed=self.outcome in (Outcome.FAILED, Outcome.BROKEN),
            status=self.status,
            tenant=tenant,
            model=sized.shape.model if sized else "",
            prompt_tokens=prompt,
            completion_tokens=produced,
            slices=ticket.sliced.sent if ticket is not None and ticket.sliced is not None else 0,
            lane=None if self.lane is None else self.lane.value,
            reason=self.reason,
            backend=self.pool,
            queue_wait_seconds=wait,
            dispatched_at=ticket.dispatched_at if ticket is not None else None,
            first_token_at=ticket.first_token_at if ticket is not None else None,
        )
