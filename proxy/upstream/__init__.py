"""SGLang as the proxy sees it: servers found and polled, requests forwarded, watched and aborted."""

from proxy.upstream.backend import Backend
from proxy.upstream.body import screen, splice
from proxy.upstream.call import Call, Observed, Usage
from proxy.upstream.client import make_client
from proxy.upstream.errors import (
    BodyRefused,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamError,
    UpstreamUnreachable,
)
from proxy.upstream.exchange import Exchange
from proxy.upstream.poll import PoolListener
from proxy.upstream.sglang import ServerInfo

__all__ = [
    "Backend",
    "BodyRefused",
    "Call",
    "Exchange",
    "Observed",
    "PoolListener",
    "ServerInfo",
    "UpstreamBroken",
    "UpstreamBusy",
    "UpstreamError",
    "UpstreamUnreachable",
    "Usage",
    "make_client",
    "screen",
    "splice",
]
