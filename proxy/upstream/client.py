"""The HTTP client all backends share."""

import httpx

from proxy.upstream.sglang import KEEPALIVE_SECONDS


def make_client(*, connect_seconds: float = 5.0) -> httpx.AsyncClient:
    """A client without connection limits (admission is the limit), proxies from the environment or redirects.

    Idle connections end before the server's own keep-alive does. Reading has no time limit: a
    queued request is silent for as long as it is queued; backends set one once bytes flow.
    """
    return httpx.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=connect_seconds),
        limits=httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_SECONDS
        ),
    )
