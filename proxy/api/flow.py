"""One inference request's whole way: read, size, ask for a place, send, stream, release."""

import asyncio
import random
import secrets
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from proxy.admission.types import Dispatch, Reason, Refuse
from proxy.api import answers, progress
from proxy.api.admission_request import admission_request
from proxy.api.answers import Answer
from proxy.api.asgi import Receive, Scope, Send, Watch
from proxy.api.background import Detached
from proxy.api.headers import Headers, forwarded, request_id, wait_limit_seconds
from proxy.api.intake import NotTaken, take_in
from proxy.api.outgoing import Outgoing
from proxy.api.record import Record
from proxy.api.services import Services
from proxy.api.slices import SlicedPrefill
from proxy.api.streaming import early_error, forward
from proxy.api.ticket import Ticket
from proxy.telemetry.metrics import Outcome, Phase
from proxy.tokens.shape import Api
from proxy.tokens.sized import Sized
from proxy.upstream.call import Call
from proxy.upstream.errors import BodyRefused, UpstreamBusy, UpstreamError, UpstreamUnreachable
from proxy.upstream.exchange import Exchange

RID_BYTES = 16  # 32 hex digits: one length, since SGLang aborts by prefix


class Flow:
    """One request's state on its way. Whatever ends `run`, `release` and `close` must follow."""

    __slots__ = (
        "api",
        "body",
        "detached",
        "exchange",
        "headers",
        "out",
        "overrides",
        "path",
        "phase",
        "pinned_pool",
        "record",
        "rid",
        "services",
        "share",
        "tells",
        "wait_limit_seconds",
    )

    def __init__(self, services: Services, api: Api, scope: Scope, send: Send) -> None:
        self.services = services
        self.api = api
        self.headers: Headers = scope["headers"]
        query: bytes = scope["query_string"]
        self.path: str = scope["path"] + ("?" + query.decode("latin-1") if query else "")
        self.rid = secrets.token_hex(RID_BYTES)
        name = request_id(self.headers, self.rid)
        span = services.tracer.start(scope["path"], name, self.headers)
        self.record = Record(name, time.monotonic(), span)
        self.out = Outgoing(api, send, name)
        self.wait_limit_seconds = 0.0
        self.overrides: tuple[str, ...] = ()
        self.body = b""
        self.share = services.room.share()
        self.pinned_pool = ""
        self.exchange: Exchange | None = None
        self.detached: Detached | None = None
        self.phase = Phase.READING
        self.tells = False

    # --- the way ---------------------------------------------------------------------------------

    async def run(self, receive: Receive) -> None:
        """From the first byte of the body to the last of the answer. Raises ClientGone."""
        record, settings = self.record, self.services.settings
        record.tenant = self.services.door.tenant_of(self.headers)
        if record.tenant is None:
            await self.out.whole(answers.unauthorized(self.api))
            return
        try:
            taken = await take_in(self.services, self.api, record.tenant, self.headers, receive, self.share)
        except NotTaken as error:
            await self._turn_away(error.reply, error.reason)
            return
        record.sized, self.body, self.overrides = taken.sized, taken.body, taken.overrides
        self.pinned_pool = taken.pinned_pool
        self.wait_limit_seconds = wait_limit_seconds(
            self.headers, settings.max_queue_seconds, settings.max_queue_seconds_limit
        )
        async with Watch(receive):
            await asyncio.sleep(0)  # who left while the body was counted is noticed before it is sent
            await self._admitted(taken.sized)

    def _forget_body(self) -> None:
        """An answer may take minutes, and a body many megabytes."""
        self.body = b""
        self.share.drop()

    async def _admitted(self, sized: Sized) -> None:
        """Wait for the place, use it; after back-pressure wait again."""
        self.phase = Phase.QUEUED
        self.tells = sized.shape.stream and progress.wanted(self.headers)
        ticket = self._submit(sized)
        while True:
            async with self._told(ticket):
                decision = await ticket.decided()
            self.record.lane = decision.lane
            if isinstance(decision, Refuse):
                reply = answers.refused(self.api, decision, self.wait_limit_seconds)
                await self._turn_away(reply, decision.reason)
                return
            self.phase = Phase.PREFILLING
            exchange = await self._send(decision, sized, ticket)
            if exchange is not None:
                break
            if self.out.status:
                return
            self.phase = Phase.QUEUED
        self.exchange = exchange
        self._forget_body()
        if ticket.sliced is not None:
            ticket.sliced.close()
        await self._stream(exchange, decision, ticket)

    def _submit(self, sized: Sized) -> Ticket:
        services, tenant = self.services, self.record.tenant
        assert tenant is not None
        request = admission_request(
            self.rid,
            self.api,
            sized,
            tenant,
            self.headers,
            wait_limit_seconds=self.wait_limit_seconds,
            short_prefill_tokens=services.settings.short_prefill_tokens,
            pinned_pool=self.pinned_pool,
        )
        sliced = None
        if request.sliceable:
            sliced = SlicedPrefill(
                self.rid,
                self.body,
                services.gate,
                services.backend_of,
                partial(services.sizer.ids, self.api),
                services.spawn,
            )
        if sized.shape.background and not sized.shape.stream:  # a stream goes on in its answer
            self.detached = Detached(services.background, self.record)
        ticket = self.record.ticket = services.gate.submit(request, sliced)
        return ticket

    async def _send(self, decision: Dispatch, sized: Sized, ticket: Ticket) -> Exchange | None:
        """The answer's head; None when the request waits again, or was answered already."""
        services, shape = self.services, sized.shape
        self.record.pool = decision.pool
        authorization = services.settings.forward_authorization
        call = Call(
            method="POST",
            path=self.path,
            pool=decision.pool,
            rid=self.rid,
            headers=self.record.span.passed_on(forwarded(self.headers, authorization=authorization)),
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
            backend = services.backend_of(decision.pool)
            async with self._told(ticket):
                return await (self.detached or backend).send(call)
        except UpstreamBusy as error:
            if not self._again(ticket):
                await self._failed(error)
        except UpstreamUnreachable as error:
            if error.sent or not self._again(ticket):
                await self._failed(error)
        except BodyRefused as error:
            self.record.pool = None
            await self.out.whole(answers.bad_request(self.api, error.message, error.param))
        return None

    def _told(self, ticket: Ticket) -> AbstractAsyncContextManager[None]:
        """News of its standing, for a client that asked for it: while it queues, and ever after."""
        waits = ticket.decision is None or self.out.committed
        return self.services.progress.told(ticket, self.out) if self.tells and waits else nullcontext()

    def _again(self, ticket: Ticket) -> bool:
        """Nothing runs at the backend: back into the queue, until its turn comes again."""
        self.record.pool = None
        return self.services.gate.requeue(ticket)

    async def _failed(self, error: UpstreamError) -> None:
        self.record.outcome, self.record.reason = Outcome.FAILED, error.reason
        message = "The backend failed before it answered."
        await self.out.whole(answers.upstream_error(self.api, 502, message, "upstream_failed"))

    async def _stream(self, exchange: Exchange, decision: Dispatch, ticket: Ticket) -> None:
        gate = self.services.gate
        ticket.observed = exchange.observed
        if self.detached is None:  # whose answer comes before any token
            exchange.on_first_token = lambda: gate.first_token(ticket)
        if exchange.early_error is not None:
            await early_error(exchange.early_error, self.out, self.record)
            return
        self.phase = Phase.STREAMING
        keeps = self.record.sized is not None and self.record.sized.shape.kept and exchange.status == 200
        if keeps:  # before its id is out
            self.services.responses.note(self.record, exchange.rid)
        await forward(exchange, self.out, self.record, self._admission_headers(decision))
        if keeps:
            self.services.responses.note(self.record, exchange.rid)

    # --- parts -----------------------------------------------------------------------------------

    def _calibrates(self, sized: Sized) -> bool:
        share = self.services.settings.calibrate_streams
        if share <= 0:
            return False
        return self.services.sizer.wants_usage(sized) or random.random() < share

    def _admission_headers(self, decision: Dispatch) -> Headers:
        return [
            (b"x-admission-lane", decision.lane.value.encode()),
            (b"x-admission-wait-ms", str(round(decision.waited_seconds * 1000)).encode()),
            (b"x-request-id", self.record.request_id.encode()),
        ]

    async def _turn_away(self, reply: Answer, reason: Reason | None) -> None:
        """`reason`: why admission refused it; None where the request itself is wrong."""
        if reason is not None:
            self.record.outcome, self.record.reason = Outcome.REFUSED, reason.value
            self.services.metrics.refused(reason)
        await self.out.whole(reply)

    # --- the end ---------------------------------------------------------------------------------

    def left_in(self) -> Phase:
        """What was going on when its client left."""
        queued = self.phase is Phase.QUEUED and self.record.ticket is not None
        return Phase.SLICING if queued and self.services.gate.slicing(self.rid) else self.phase

    def release(self) -> None:
        """Give the place back: at once where the engine is done, else when the abort is through."""
        record, exchange, gate = self.record, self.exchange, self.services.gate
        ticket = record.ticket
        self._forget_body()
        if ticket is None or ticket.closed:
            return
        if record.pool is None:
            gate.leave_unsent(ticket)
        elif self.detached is not None and self.detached.taken_on:
            told = record.outcome is Outcome.COMPLETED or self.detached.answered_by(self.out.sent_bytes)
            self.services.background.take(self.detached, told=told)
        elif exchange is not None and exchange.over.is_set() and exchange.observed.ended:
            gate.finish(ticket, completed=record.outcome is Outcome.COMPLETED)
        else:
            gate.leave(ticket)
            self.services.let_go(record.pool, ticket, exchange)

    def close(self) -> None:
        """Log and count it, where it does not go on."""
        self.record.status = self.record.status or self.out.status
        if self.detached is None or not self.detached.taken:
            self.record.write(self.services.metrics, self.services.sizer)
