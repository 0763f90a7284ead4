"""httpx's transport over our own connections: what the proxy needs of HTTP/1.1, and nothing else.

The default one costs a third of a millisecond for each request and grows with the number of
connections (docs/performance.md). No proxies, no HTTP/2, no limit on connections: admission is one.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable

import httpx

from proxy.upstream.connection import Connection, Trace
from proxy.upstream.request_bytes import content_of, head_of

Origin = tuple[str, str, int]
_PORTS = {"http": 80, "https": 443}
# No descriptor is free: that is no fault of the server, and passes.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
_EXHAUSTED_PAUSE_SECONDS = 0.05


class Transport(httpx.AsyncBaseTransport):
    """Connections to any number of servers; the one that was used last is used next.

    A connection that was idle for `keepalive_seconds` is not used again. Belongs to one event
    loop, the one it is first used on.
    """

    def __init__(self, *, keepalive_seconds: float) -> None:
        self._keepalive_seconds = keepalive_seconds
        self._idle: dict[Origin, dict[Connection, None]] = {}
        self._open: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None
        self._none_open = asyncio.Event()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The head of the answer; its body is left to be streamed. Raises httpx.TransportError."""
        head, content = head_of(request), await content_of(request)
        url = request.url
        origin = (url.scheme, url.host, url.port or _PORTS.get(url.scheme, 0))
        connection = self._take(origin) or await self._connect(origin, request)
        try:
            return await connection.ask(request, head, content)
        except BaseException:
            connection.cut()
            raise

    async def aclose(self) -> None:
        """Closes every connection, also those in use."""
        self._closed = True
        for connection in tuple(self._open):
            connection.cut()
        if self._open:
            await self._none_open.wait()

    def _take(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        if not idle:
            return None
        alive_since = asyncio.get_running_loop().time() - self._keepalive_seconds
        while idle and (oldest := next(iter(idle))).idle_since < alive_since:
            del idle[oldest]
            oldest.cut()
        while idle:
            connection, _ = idle.popitem()
            if connection.is_open:  # else it is closing, and we have not been told yet
                return connection
        return None

    async def _connect(self, origin: Origin, request: httpx.Request) -> Connection:
        scheme, host, port = origin
        if scheme not in _PORTS or not host:
            raise httpx.UnsupportedProtocol(f"cannot connect to {request.url.scheme!r}")
        if self._closed:
            raise httpx.ConnectError("the client is closed")
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(origin, {})

        def freed(connection: Connection) -> None:
            connection.idle_since = loop.time()
            idle[connection] = None

        def lost(connection: Connection) -> None:
            idle.pop(connection, None)
            self._open.discard(connection)
            if self._closed and not self._open:
                self._none_open.set()

        trace: Trace | None = request.extensions.get("trace")
        if trace is not None:
            await trace("connection.connect_tcp.started", {})
        try:
            async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
                connection = await self._open_one(
                    lambda: Connection(loop, freed=freed, lost=lost),
                    host,
                    port,
                    self._tls_context() if scheme == "https" else None,
                )
        except TimeoutError:
            raise httpx.ConnectTimeout("connecting timed out") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: a host that is no host name
            raise httpx.ConnectError(str(error)) from error
        if connection.is_open:
            self._open.add(connection)
        return connection

    async def _open_one(
        self, make: Callable[[], Connection], host: str, port: int, tls: ssl.SSLContext | None
    ) -> Connection:
        """Connected; waits while this process has no descriptor left. Raises what connecting raises."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return (await loop.create_connection(make, host, port, ssl=tls))[1]
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
            await asyncio.sleep(_EXHAUSTED_PAUSE_SECONDS)

    def _tls_context(self) -> ssl.SSLContext:
        """Verifies, with the authorities httpx brings. Made when it is first needed: it takes a while."""
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls
