"""One client's TCP connection: uvicorn's protocol, with the bounds it does not have itself.

A head has to come, whole and not too large; an answer has to be taken. Otherwise a few clients
could hold memory, descriptors and, by never reading, tokens of the pool for as long as they like.
"""

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 65_536
HEAD_SECONDS = 60.0  # from the first byte of a head, or from connecting
UNREAD_SECONDS = 300.0  # how long an answer may stand still because nobody reads it
TURNED_AWAY_SECONDS = 1.0  # for one client too many to say something, and be told

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_MANY = (
    b"HTTP/1.1 503 Too Many Connections\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
# Java's client offers HTTP/2 with every request, POST included; the parser would then drop the body.
# A server may ignore an offer: under this name nobody looks at it.
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_IGNORED = b"\r\nx-admission-ignored:"
_HEAD = b"HTTP/1.1 "


class JoinedHead(asyncio.Transport):
    """A transport that lets an answer's head wait for what follows it in the same turn of the loop.

    uvicorn writes the two apart: two packets, and two system calls that wake the client up.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif bytes(data[: len(_HEAD)]) == _HEAD:
            self._head = bytes(data)
            self._loop.call_soon(self._write_head)
            return
        self._pass_on(data)

    def _write_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._pass_on(head)

    def _pass_on(self, data: bytes | bytearray | memoryview) -> None:
        # bad bytes behind a request close the connection under its answer, and uvloop would raise
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self._write_head()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._head)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose head is too large or too slow, whose answer nobody reads, and one too many."""

    # beside uvicorn's own in the instance's dict they would make it four times as large
    __slots__ = ("_head_timer", "_in_head", "_loose_bytes", "_one_too_many", "_unread_timer")

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._in_head = True
        self._loose_bytes = 0  # came, and became neither a whole head nor body
        self._one_too_many = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedHead(transport, self.loop))
        most = self.limit_concurrency
        # one less than uvicorn's own limit, which refuses requests and keeps their connections
        self._one_too_many = most is not None and len(self.connections) >= most
        seconds = TURNED_AWAY_SECONDS if self._one_too_many else HEAD_SECONDS
        self._head_timer = self.loop.call_later(seconds, transport.abort)
        if most is not None and len(self.connections) >= 2 * most:
            transport.abort()  # there is no time to tell so many

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head_timer()
        self._end_unread_timer()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # else, after a reset, it would hold all of this for its time

    def data_received(self, data: bytes) -> None:
        if self._one_too_many:
            self.transport.write(_TOO_MANY)
            self.transport.close()
            return
        self._loose_bytes += len(data)
        if self._in_head:
            end = data.find(b"\r\n\r\n")
            head = data if end < 0 else data[:end]
            if _UPGRADE.search(head):
                data = _UPGRADE.sub(_IGNORED, head) + data[len(head) :]
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._loose_bytes > HEAD_BYTES:
            self._refuse()
        elif self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        elif not self._in_head and self.cycle.response_complete and self.timeout_keep_alive_task is None:
            # bytes that begin no request must not keep an idle connection open for ever
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers come here as well, and would become headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._loose_bytes = False, 0
        self._end_head_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        super().on_body(body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_unread_timer()
        super().resume_writing()

    def _refuse(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
