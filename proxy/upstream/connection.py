"""One HTTP/1.1 connection to a server: a request out, its answer in, again and again.

The parser is llhttp in its strict form; what it lets pass and a proxy must not is refused here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools
import httpx

from proxy.upstream.reply import LARGEST_WAITING_BYTES, Reply

LARGEST_HEAD_BYTES = 64 * 1024  # of headers, trailers, chunk extensions: all that is not body
_JOINED_BYTES = 64 * 1024  # a body up to this is copied behind its head, to leave in one packet
_STATUSES = range(200, 600)
_VERSIONS = ("1.0", "1.1")

Trace = Callable[[str, dict[str, Any]], Awaitable[None]]


class Connection(asyncio.Protocol):
    """Belongs to a pool: `freed` is called when it can take another request, `lost` when it is gone.

    It is freed as soon as the last byte of an answer is here, whoever reads that.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        freed: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self.idle_since = 0.0
        self._loop = loop
        self._freed = freed
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: Reply | None = None
        self._sent = True  # the whole request has left
        self._writing_paused = False
        self._reading_paused = False
        self._bodiless = False  # the answer to a HEAD
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._barren_bytes = 0  # since the last of the body came
        self._until_close = False
        self._complete = False
        self._reusable = False
        self._fault: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent over it."""
        return self._transport is not None and not self._transport.is_closing()

    # --- a request

    async def ask(self, request: httpx.Request, head: bytes, content: bytes) -> httpx.Response:
        """Sends `head` and `content`; returns with the head of the answer. Raises httpx.TransportError.

        On any failure, and when it is cancelled, the connection must be closed: `cut`.
        """
        trace: Trace | None = request.extensions.get("trace")
        timeouts = request.extensions.get("timeout", {})
        reply = Reply(self, timeouts, self._loop)
        if trace is not None:
            await trace("http11.send_request_headers.started", {})
        self._write(reply, head, content, bodiless=request.method == "HEAD")
        while self._writing_paused and not reply.status:
            await reply.changed(timeouts.get("write"), httpx.WriteTimeout)
        if trace is not None and not self._writing_paused:
            await trace("http11.send_request_body.complete", {})
        while not reply.status:
            await reply.changed(timeouts.get("read"), httpx.ReadTimeout)
        if trace is not None:
            await trace("http11.receive_response_headers.complete", {})
        return httpx.Response(
            reply.status,
            headers=reply.headers,
            stream=reply,
            extensions={"http_version": b"HTTP/1.1"},
            request=request,
        )

    def _write(self, reply: Reply, head: bytes, content: bytes, *, bodiless: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            raise httpx.WriteError("closed before anything was sent")
        self._reply = reply
        self._bodiless = bodiless
        self._begin_answer()
        self._sent = False
        if len(content) <= _JOINED_BYTES:
            transport.write(head + content)
        else:
            transport.writelines((head, content))
        self._sent = not self._writing_paused

    def cut(self) -> None:
        """Closes it at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """The reader of the answer has caught up."""
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Writing is paused while anything is left: `sent` means that the kernel has it all.
        self._transport.set_write_buffer_limits(high=1, low=0)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._sent = True
        if self._reply is not None:
            self._reply.wake()

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:  # nobody asked anything
            self.cut()
            return
        self._barren_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._blame(f"not HTTP/1.1: {error}")
        if self._complete:
            self._finish(reply)
        elif self._fault is not None:
            self._fail(reply, httpx.RemoteProtocolError(self._fault))
        elif self._barren_bytes > LARGEST_HEAD_BYTES:
            self._fail(reply, httpx.RemoteProtocolError("headers are too long"))
        else:
            reply.wake()
            if reply.waiting_bytes >= LARGEST_WAITING_BYTES and not self._reading_paused:
                self._reading_paused = True
                cast("asyncio.Transport", self._transport).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost(self)
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if exc is not None:
            kind = httpx.ReadError if self._sent else httpx.WriteError
            reply.fail(kind(str(exc) or type(exc).__name__))
        elif reply.status and self._until_close:
            reply.end()
        elif reply.status:
            reply.fail(httpx.RemoteProtocolError("closed before the answer was complete"))
        else:
            reply.fail(httpx.RemoteProtocolError("closed without an answer"))

    # --- the parser's callbacks: what they raise would be lost, so they take notes

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False  # an answer that nobody asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > LARGEST_HEAD_BYTES:
            self._blame("headers are too long")
        elif self._reply is not None and not self._reply.status:  # else a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        reply, status = self._reply, self._parser.get_status_code()
        if reply is None or self._complete:
            return
        if 100 <= status < 200 and status != 101:
            self._headers = []
            return
        if status not in _STATUSES or self._parser.get_http_version() not in _VERSIONS:
            self._blame(f"status {status}, HTTP/{self._parser.get_http_version()}")
            return
        if not self._check_framing(status):
            return
        self._barren_bytes = 0
        reply.status, reply.headers = status, self._headers
        self._complete = self._bodiless

    def _check_framing(self, status: int) -> bool:
        """How long the body is must be said once at most, and in a way every reader understands."""
        lengths = codings = 0
        for name, value in self._headers:
            lower = name.lower()
            if lower == b"content-length":
                lengths += 1
            elif lower == b"transfer-encoding":
                codings += 1
                if value.strip().lower() != b"chunked" or self._parser.get_http_version() == "1.0":
                    codings += 1
        if lengths + codings > 1:
            self._blame("the length of the body is ambiguous")
            return False
        self._until_close = not (lengths or codings) and status not in (204, 304)
        return True

    def on_body(self, body: bytes) -> None:
        if self._reply is not None and not self._complete and self._fault is None:
            self._barren_bytes = 0
            self._reply.add(body)

    def on_message_complete(self) -> None:
        if self._reply is not None and self._reply.status and not self._complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    # --- the end of an answer

    def _blame(self, fault: str) -> None:
        if self._complete:
            self._reusable = False
        elif self._fault is None:
            self._fault = fault

    def _finish(self, reply: Reply) -> None:
        self._reply = None
        reply.end()
        if self._reusable and self._sent and self._transport is not None:
            self.go_on()
            self._freed(self)
        else:
            self.cut()

    def _fail(self, reply: Reply, error: httpx.TransportError) -> None:
        self._reply = None
        reply.fail(error)
        self.cut()
