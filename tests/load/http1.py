"""The least of HTTP/1.1 that a load client needs: one request a connection, its answer as it comes.

Written for a machine where the server, the proxy and the client share two cores: an answer costs
one callback a packet and no object a token.
"""

import asyncio
from typing import Protocol
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 65_536
ENCODED_IN_CHUNKS = "chunked"


class BadAnswer(Exception):
    """The peer broke off, or sent what is not HTTP."""


Headers = dict[str, str]  # lower-case names


class Listener(Protocol):
    """Is told of an exchange as it goes on."""

    def on_sent(self) -> None:
        """The last byte of the request was handed to the kernel."""

    def on_head(self, status: int, headers: Headers) -> None:
        """The answer began."""

    def on_body(self, data: bytes) -> None:
        """A piece of the body, its transfer coding taken off."""


class Exchange(asyncio.Protocol):
    """One request and its answer. `ended` resolves at the end of the body, or raises BadAnswer."""

    def __init__(self, request: bytes, listener: Listener) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._listener = listener
        self._head_seen = False
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._body = _Body()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        transport.write(self._request)
        self._request = b""
        if transport.get_write_buffer_size() == 0:
            self._listener.on_sent()

    def resume_writing(self) -> None:
        self._listener.on_sent()

    def data_received(self, data: bytes) -> None:
        try:
            self._feed(data)
        except (BadAnswer, ValueError) as broken:
            self._end(BadAnswer(str(broken)))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_seen and self._body.ends_with_connection and exc is None:
            self._end(None)
        else:
            self._end(BadAnswer(f"connection closed{f': {exc}' if exc else ''}"))

    async def connect(self, url: str) -> None:
        """Connects and sends. Raises OSError where nobody listens."""
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, parts.hostname or "", parts.port or 80)

    def leave(self) -> None:
        """What a client does that loses interest: the connection is gone at once."""
        self.ended.cancel()  # nobody waits for it any more
        if self._transport is not None:
            self._transport.abort()

    def _feed(self, data: bytes) -> None:
        if not self._head_seen:
            self._buffer += data
            at = self._buffer.find(b"\r\n\r\n")
            if at < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise BadAnswer("no end of the headers")
                return
            self._head_seen = True
            self._read_head(bytes(self._buffer[:at]))
            data = bytes(self._buffer[at + 4 :])
            self._buffer.clear()
        piece = self._body.feed(data)
        if piece:
            self._listener.on_body(piece)
        if self._body.complete:
            self._end(None)

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        headers: Headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._body.expect(headers)
        self._listener.on_head(int(first.split(" ", 2)[1]), headers)

    def _end(self, problem: BadAnswer | None) -> None:
        if not self.ended.done():
            if problem is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(problem)
        if self._transport is not None:
            self._transport.close()


class _Body:
    """Takes the transfer coding off a body, whatever packets it comes in."""

    def __init__(self) -> None:
        self.complete = False
        self.ends_with_connection = False
        self._chunked = False
        self._left = 0  # bytes of the body, or of the chunk under way with its line end
        self._rest = b""

    def expect(self, headers: Headers) -> None:
        self._chunked = headers.get("transfer-encoding", "").lower() == ENCODED_IN_CHUNKS
        length = headers.get("content-length")
        if not self._chunked:
            self.ends_with_connection = length is None
            self._left = int(length or 0)
            self.complete = length == "0"

    def feed(self, data: bytes) -> bytes:
        if self._chunked:
            return self._dechunk(data)
        if not self.ends_with_connection:
            self._left -= len(data)
            self.complete = self._left <= 0
        return data

    def _dechunk(self, data: bytes) -> bytes:
        data = self._rest + data
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.complete:
            if self._left == 0:
                line_end = data.find(b"\r\n", at)
                if line_end < 0:
                    break
                size = int(data[at:line_end].partition(b";")[0], 16)
                at = line_end + 2
                self.complete = size == 0
                self._left = size + 2
                continue
            take = min(self._left, len(data) - at)
            text = take - max(0, 2 - (self._left - take))  # the last two bytes are the line end
            if text > 0:
                pieces.append(data[at : at + text])
            self._left -= take
            at += take
        self._rest = data[at:]
        return b"".join(pieces)


def encode_request(method: str, url: str, body: bytes = b"", headers: Headers | None = None) -> bytes:
    """The bytes of a request to `url`, one for its connection."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"host: {parts.netloc}", "connection: close", "accept: */*"]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def get(url: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """Status and body of a GET. Raises OSError (TimeoutError among them) or BadAnswer."""
    document = _Document()
    exchange = Exchange(encode_request("GET", url), document)
    try:
        await exchange.connect(url)
        await asyncio.wait_for(exchange.ended, timeout)
    finally:
        exchange.leave()
    return document.status, bytes(document.body)


class _Document:
    """Listens to a short answer."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def on_sent(self) -> None:
        pass

    def on_head(self, status: int, headers: Headers) -> None:
        self.status = status

    def on_body(self, data: bytes) -> None:
        self.body += data
