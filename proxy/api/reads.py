"""Harmless reads (`/v1/models`, `/tokenize`, ...): forwarded to a backend that is up, uncounted."""

import secrets
from collections.abc import Callable

from proxy.admission.types import Reason
from proxy.api.answers import TABLE, bad_request, upstream_error
from proxy.api.asgi import BodyTooLarge, ClientGone, Receive, Scope, Send, Watch, answer, read_body
from proxy.api.gate import Gate
from proxy.api.headers import forwarded, request_id
from proxy.api.paths import family_of
from proxy.settings import Settings
from proxy.upstream.backend import Backend
from proxy.upstream.call import Call
from proxy.upstream.errors import UpstreamBroken, UpstreamBusy, UpstreamUnreachable

READ_BODY_BYTES = 16 * 1024 * 1024  # to be tokenized on the server's own loop: not without bound


class Reads:
    """Forwards a read to the first backend that is up."""

    def __init__(self, settings: Settings, gate: Gate, backend_of: Callable[[str], Backend]) -> None:
        self._settings = settings
        self._gate = gate
        self._backend_of = backend_of

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one read."""
        api = family_of(scope["path"])
        name = request_id(scope["headers"], secrets.token_hex(16))
        limit = min(READ_BODY_BYTES, self._settings.max_body_bytes)
        try:
            body = await read_body(scope, receive, limit)
            async with Watch(receive):
                await self._forward(scope, body, name, send)
        except BodyTooLarge as error:
            await answer(send, bad_request(api, str(error), status=413), name)
        except ClientGone:
            return
        except (UpstreamUnreachable, UpstreamBusy):
            await answer(
                send, upstream_error(api, 502, "The backend did not answer.", "upstream_failed"), name
            )

    async def _forward(self, scope: Scope, body: bytes, name: str, send: Send) -> None:
        up = [pool for pool, line in self._gate.controller.lines.items() if line.pool.up]
        api = family_of(scope["path"])
        if not up:
            row = TABLE[Reason.NO_BACKEND]
            message = row.message.format(retry=5)
            reply = upstream_error(api, row.status, message, Reason.NO_BACKEND.value)
            await answer(send, reply, name)
            return
        query = scope["query_string"].decode("latin-1")
        call = Call(
            method=scope["method"],
            path=scope["path"] + ("?" + query if query else ""),
            pool=up[0],
            headers=forwarded(scope["headers"], authorization=self._settings.forward_authorization),
            body=body,
        )
        async with await self._backend_of(up[0]).send(call) as exchange:
            headers = [*exchange.headers, (b"x-request-id", name.encode())]
            await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
            try:
                async for chunk in exchange:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except UpstreamBroken as error:
                raise ConnectionError(error.reason) from error
            await send({"type": "http.response.body", "body": b""})
