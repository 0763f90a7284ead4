"""One server's address and keys, and the client that reaches it."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpx

from proxy.backend_spec import BackendSpec
from proxy.upstream.errors import BodyRefused

Headers = list[tuple[bytes, bytes]]
TraceFunction = Callable[[str, dict[str, Any]], Awaitable[None]]

# Set by the client library, by us, or meaningless to the next hop.
_NOT_FORWARDED = frozenset(
    (b"host", b"content-length", b"connection", b"transfer-encoding", b"keep-alive", b"upgrade", b"te",
     b"trailer", b"proxy-authorization", b"proxy-connection", b"expect", b"accept-encoding")
)  # fmt: skip
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"proxy-connection",
     b"proxy-authenticate")
)  # fmt: skip
_LARGEST_URL_CACHE = 64
# What no HTTP server may write into a header; the client library lets some of it pass.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Link:
    """Builds requests to one server. `get` and `post` are for the proxy's own small questions."""

    def __init__(
        self, spec: BackendSpec, client: httpx.AsyncClient, *, connect_seconds: float, stall_seconds: float
    ) -> None:
        self._base = spec.url
        self._client = client
        self._connect_seconds = connect_seconds
        self._stall_seconds = stall_seconds
        self._key = _bearer(spec.api_key)
        self._admin_key = _bearer(spec.admin_key or spec.api_key)
        self._urls: dict[str, httpx.URL] = {}

    def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        admin: bool = False,
        trace: TraceFunction | None = None,
    ) -> httpx.Request:
        """A request with the server's key. Asks for an uncompressed answer, which can be watched.

        Raises BodyRefused for a target that cannot be written into a request line.
        """
        key = self._admin_key if admin else self._key
        url = self._url(path)
        kept = [(b"host", url.netloc)]
        kept += [
            (name, value)
            for name, value in headers
            if (lower := name.lower()) not in _NOT_FORWARDED and not (key and lower == b"authorization")
        ]
        kept.append((b"accept-encoding", b"identity"))
        if body or method not in ("GET", "HEAD"):
            kept.append((b"content-length", b"%d" % len(body)))
        if key:
            kept.append((b"authorization", key))
        timeout = {"connect": self._connect_seconds, "read": None, "write": self._stall_seconds, "pool": None}
        extensions: dict[str, Any] = {"timeout": timeout}
        if trace:
            extensions["trace"] = trace
        # `stream`, unlike `content`, lets httpx leave the headers as they are: a third of the time
        return httpx.Request(method, url, headers=kept, stream=httpx.ByteStream(body), extensions=extensions)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Headers only; the body is left to be streamed. Raises httpx.TransportError."""
        return await self._client.send(request, stream=True, follow_redirects=False)

    async def get(self, path: str, *, seconds: float) -> httpx.Response:
        """A whole answer within `seconds`. Raises httpx.TransportError or TimeoutError."""
        async with asyncio.timeout(seconds):
            return await self._client.send(self.request("GET", path), follow_redirects=False)

    async def post(self, path: str, body: bytes, *, seconds: float, admin: bool = False) -> httpx.Response:
        """A whole answer to a JSON body within `seconds`. Raises as `get`."""
        request = self.request("POST", path, [(b"content-type", b"application/json")], body, admin=admin)
        async with asyncio.timeout(seconds):
            return await self._client.send(request, follow_redirects=False)

    def _url(self, path: str) -> httpx.URL:
        url = self._urls.get(path)
        if url is None:
            try:
                url = httpx.URL(self._base + path)
            except httpx.InvalidURL as error:
                raise BodyRefused(f"the request cannot be forwarded: {error}") from error
            if "?" not in path and len(self._urls) < _LARGEST_URL_CACHE:
                self._urls[path] = url
        return url


def end_to_end(headers: Headers) -> Headers:
    """Response headers without those that concern only the hop to us.

    With both a length and a transfer coding the coding counts, and the length is wrong (RFC 9112, 6.3).
    """
    dropped = _HOP_BY_HOP
    for name, value in headers:
        lower = name.lower()
        if lower == b"connection":
            dropped = dropped | {token.strip() for token in value.lower().split(b",")}
        elif lower == b"transfer-encoding":
            dropped = dropped | {b"content-length"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def can_be_forwarded(status: int, headers: Headers) -> bool:
    """Whether an answer's head may be written to a client: a final status, no control characters."""
    return 200 <= status <= 599 and not any(_CONTROL.search(value) for _, value in headers)


def reason_of(error: Exception) -> str:
    """One line for a log: what a transport error means, never with a URL's secrets."""
    if isinstance(error, httpx.ConnectTimeout):
        return "connecting timed out"
    if isinstance(error, (httpx.TimeoutException, TimeoutError)):
        return "timed out"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _bearer(key: str | None) -> bytes | None:
    return b"Bearer " + key.encode() if key else None
