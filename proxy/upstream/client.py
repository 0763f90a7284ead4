"""The HTTP client all backends share."""

from typing import Any

import httpx

from proxy.upstream.sglang import KEEPALIVE_SECONDS
from proxy.upstream.transport import Transport


class Client(httpx.AsyncClient):
    """httpx's client without what a proxy must not do anyway: authentication, cookies, redirects, hooks."""

    def __init__(self, transport: httpx.AsyncBaseTransport, timeout: httpx.Timeout) -> None:
        super().__init__(transport=transport, trust_env=False, follow_redirects=False, timeout=timeout)
        self._straight = transport

    async def send(self, request: httpx.Request, *, stream: bool = False, **_: Any) -> httpx.Response:
        """As httpx's; the request goes to the transport as it is. Raises httpx.TransportError."""
        if self.is_closed:
            raise RuntimeError("the client is closed")
        request.extensions.setdefault("timeout", self.timeout.as_dict())
        response = await self._straight.handle_async_request(request)
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response


def make_client(*, connect_seconds: float = 5.0) -> httpx.AsyncClient:
    """A client without connection limits (admission is the limit), proxies from the environment or redirects.

    Idle connections end before the server's own keep-alive does. Reading has no time limit: a
    queued request is silent for as long as it is queued; backends set one once bytes flow.
    """
    transport = Transport(keepalive_seconds=KEEPALIVE_SECONDS)
    return Client(transport, httpx.Timeout(None, connect=connect_seconds))
