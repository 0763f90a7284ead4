"""`/admission/live`: the page, and the server-sent events that feed it.

There is no task and no state behind it: each viewer's own connection asks for a frame when one is
due, and all of them share it. With nobody watching nothing runs.
"""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from re import DOTALL, search

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from proxy.api import live_frame
from proxy.api.asgi import ClientGone, Receive, Scope, Send, Watch
from proxy.api.gate import Gate

# A client that leaves is off the page within a second: half of it for the server to let go.
FRAME_SECONDS = 0.4
SHARED_SECONDS = 0.3  # viewers share a frame no older than this: at most four are made a second
MOST_VIEWERS = 16  # a wall, some desks, some phones
RETRY_SECONDS = 10
RECONNECT_MILLISECONDS = 1000

_NEVER_STORED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Live:
    """The page of one proxy and its viewers."""

    def __init__(self, gate: Gate, *, clock: Callable[[], float] | None = None) -> None:
        self._gate = gate
        self._clock = clock or gate.clock
        self._leaving = asyncio.Event()
        self._event = b""
        self._made_at = float("-inf")
        self.viewers = 0

    async def page(self, _: HttpRequest) -> Response:
        """The page itself. It holds no figures: those come with the events."""
        return Response(_PAGE, media_type="text/html", headers=_PAGE_HEADERS)

    async def events(self, http: HttpRequest) -> Response:
        """Frames until the client leaves or the proxy does."""
        if self._leaving.is_set() or self.viewers >= MOST_VIEWERS:
            raise HTTPException(
                503, f"{self.viewers} viewers are all that are served", {"retry-after": str(RETRY_SECONDS)}
            )
        headers = {**_NEVER_STORED, "x-accel-buffering": "no"}  # nginx would hold frames back
        if http.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        return _Events(self, headers)

    def close(self) -> None:
        """The proxy is leaving: every viewer's stream ends, and none begins."""
        self._leaving.set()

    def event(self) -> bytes:
        """The newest frame as an event."""
        now = self._clock()
        if now - self._made_at >= SHARED_SECONDS:
            self._event = b"data: " + orjson.dumps(live_frame.frame(self._gate)) + b"\n\n"
            self._made_at = now
        return self._event

    async def left_within(self, seconds: float) -> bool:
        """Waits so long, or until the proxy leaves: True."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._leaving.wait()
        return False


class _Events(Response):
    """One viewer's stream. Who reads slowly skips frames, and holds nobody else up."""

    media_type = "text/event-stream"

    def __init__(self, live: Live, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        live = self._live
        live.viewers += 1
        try:
            async with Watch(receive):
                await self._stream(send)
        except ClientGone:
            pass  # the usual end of watching
        finally:
            live.viewers -= 1

    async def _stream(self, send: Send) -> None:
        live = self._live
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _write(send, f"retry: {RECONNECT_MILLISECONDS}\n\n".encode())
        while True:
            await _write(send, live.event())
            if await live.left_within(FRAME_SECONDS):
                break
        await send({"type": "http.response.body", "body": b""})


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _hash_of(element: str, page: str) -> str:
    """The page's one inline `element` as a source of its Content-Security-Policy."""
    found = search(f"<{element}>(.*?)</{element}>", page, DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'"


_PAGE = files("proxy.api").joinpath("live.html").read_text(encoding="utf-8")
_PAGE_HEADERS = {
    **_NEVER_STORED,
    # exactly this script and this style, events from here, and nothing from or to anywhere else
    "content-security-policy": "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash_of('script', _PAGE)}",
            f"style-src {_hash_of('style', _PAGE)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    ),
    "referrer-policy": "no-referrer",
}
