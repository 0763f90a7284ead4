"""Getting a request onto the wire: the smallest edit of its body, and the one safe retry."""

import secrets
from collections.abc import Callable
from typing import Any, Protocol

import httpx

from proxy.upstream.body import splice
from proxy.upstream.call import Call
from proxy.upstream.errors import BodyRefused, UpstreamUnreachable
from proxy.upstream.link import Link, reason_of
from proxy.upstream.sglang import RID_HEADER, Route

# A connection that was closed says so within a round trip; what ran for longer was taken on.
STALE_SECONDS = 1.0


class Desk(Protocol):
    """What sending needs of the backend."""

    link: Link
    clock: Callable[[], float]

    def edit(self, call: Call, route: Route, rid: str) -> tuple[list[tuple[str, bytes]], bool]:
        """The keys to splice into the body, and whether they ask for a usage chunk to swallow."""

    def orphaned(self, call: Call, rid: str, sent_at: float) -> None:
        """Sent under this id before, and the connection died: abort it should it have arrived."""


class Attempt:
    """One try: its id, and what the transport reported of it while it went out."""

    __slots__ = ("_clock", "answered", "delivered", "reused", "rid", "sent_at")

    def __init__(self, rid: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.rid = rid
        self.sent_at: float | None = None  # when the first byte was handed over, later the last
        self.delivered = False  # all of it was handed over
        self.reused = True  # on a connection that had been idle
        self.answered = False

    def was_stale(self) -> bool:
        """After a failure: whether the connection seems to have been closed before this was sent."""
        ran_seconds = self._clock() - (self.sent_at or 0.0)
        return self.reused and not self.answered and ran_seconds < STALE_SECONDS

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpx's `trace` extension."""
        match event:
            case "connection.connect_tcp.started":
                self.reused = False
            case "http11.send_request_headers.started":
                self.sent_at = self._clock()
            case "http11.send_request_body.complete":
                self.sent_at = self._clock()
                self.delivered = True
            case "http11.receive_response_headers.complete":
                self.answered = True


class Sender:
    """Sends one call. `attempt` is the current try; `swallow_usage` whether its edit asked for usage."""

    __slots__ = ("_desk", "_route", "attempt", "call", "swallow_usage")

    def __init__(self, call: Call, route: Route | None, desk: Desk) -> None:
        self.call = call
        self._route = route
        self._desk = desk
        self.attempt = Attempt(call.rid, desk.clock)
        self.swallow_usage = False

    async def send(self, may_retry: Callable[[], bool]) -> httpx.Response:
        """The head of the answer. Raises UpstreamUnreachable, BodyRefused.

        A connection that had been idle may have been closed under us: that shows at once, most
        likely nothing arrived, and it is sent once more. Should it have arrived, its id would be
        refused as a duplicate, so the second try takes another, and the first is aborted.
        """
        attempt = self.attempt
        try:
            return await self._try(attempt)
        except UpstreamUnreachable as error:
            if not (error.sent and attempt.was_stale() and may_retry()):
                raise
        assert attempt.sent_at is not None
        self._desk.orphaned(self.call, attempt.rid, attempt.sent_at)
        self.attempt = Attempt(fresh_rid(attempt.rid), self._desk.clock)
        try:
            return await self._try(self.attempt)
        except UpstreamUnreachable as error:  # the first may have arrived
            raise UpstreamUnreachable(error.reason, sent=True) from error

    async def _try(self, attempt: Attempt) -> httpx.Response:
        request = self._request(attempt)
        try:
            return await self._desk.link.send(request)
        except httpx.LocalProtocolError as error:
            raise BodyRefused(f"the request cannot be forwarded: {error}") from error
        except httpx.TransportError as error:
            raise UpstreamUnreachable(reason_of(error), sent=attempt.sent_at is not None) from error

    def _request(self, attempt: Attempt) -> httpx.Request:
        call, body, headers = self.call, self.call.body, self.call.headers
        if self._route is not None and body and call.rid:
            fields, self.swallow_usage = self._desk.edit(call, self._route, attempt.rid)
            body = splice(body, fields)
            if self._route.rid_field is None:
                headers = [*headers, (RID_HEADER, attempt.rid.encode())]
        return self._desk.link.request(call.method, call.path, headers, body, trace=attempt.trace)


def fresh_rid(rid: str) -> str:
    """Another id of the same length: SGLang aborts by prefix."""
    return secrets.token_hex((len(rid) + 1) // 2)[: len(rid)]
