"""Harmless reads (`/v1/models`, `/tokenize`, ...): forwarded to a backend that is up, uncounted."""

import logging
import secrets
from collections.abc import Callable, Iterable

from proxy.api.answers import (
    Answer,
    bad_request,
    body_too_large,
    body_too_slow,
    no_backend,
    no_room,
    unauthorized,
    upstream_error,
)
from proxy.api.asgi import BodyTooLarge, ClientGone, Receive, Scope, Send, Watch, answer, read_body
from proxy.api.gate import Gate
from proxy.api.headers import forwarded, request_id, with_ours
from proxy.api.keys import Door
from proxy.api.paths import family_of
from proxy.api.room import NoRoom, Room
from proxy.settings import Settings
from proxy.tokens.shape import Api
from proxy.upstream.backend import Backend
from proxy.upstream.call import Call
from proxy.upstream.errors import BodyRefused, UpstreamBroken, UpstreamUnreachable
from proxy.upstream.exchange import Exchange

logger = logging.getLogger("proxy.reads")

READ_BODY_BYTES = 16 * 1024 * 1024  # to be tokenized on the server's own loop: not without bound


class Reads:
    """Forwards a read to the first backend that answers."""

    def __init__(
        self, settings: Settings, gate: Gate, backend_of: Callable[[str], Backend], door: Door, room: Room
    ) -> None:
        self._settings = settings
        self._gate = gate
        self._backend_of = backend_of
        self._door = door
        self._room = room

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one read."""
        api = family_of(scope["path"])
        name = request_id(scope["headers"], secrets.token_hex(16))
        if self._door.tenant_of(scope["headers"]) is None:
            await answer(send, unauthorized(api), name)
            return
        limit = min(READ_BODY_BYTES, self._settings.max_body_bytes)
        share = self._room.share()
        try:
            body = await read_body(scope, receive, limit, share)
            async with Watch(receive):
                reply = await self._forward(api, scope, body, name, send)
        except BodyTooLarge as error:
            reply = body_too_large(api, error.limit_bytes)
        except NoRoom:
            reply = no_room(api)
        except TimeoutError:
            reply = body_too_slow(api)
        except BodyRefused as error:
            reply = bad_request(api, error.message)
        except ClientGone:
            return
        finally:
            share.drop()
        if reply is not None:
            await answer(send, reply, name)

    async def _forward(self, api: Api, scope: Scope, body: bytes, name: str, send: Send) -> Answer | None:
        """Forwards to the first backend that answers; the answer when none does. Reads may be repeated."""
        query = scope["query_string"].decode("latin-1")
        reply = no_backend(api)
        for pool in self._one_pool_each():
            call = Call(
                method=scope["method"],
                path=scope["path"] + ("?" + query if query else ""),
                pool=pool,
                headers=forwarded(scope["headers"], authorization=self._settings.forward_authorization),
                body=body,
            )
            try:
                exchange = await self._backend_of(pool).send(call)
            except UpstreamUnreachable as error:
                logger.info("%s %s: %s: %s", scope["method"], scope["path"], pool, error.reason)
                reply = upstream_error(api, 502, "The backend did not answer.", "upstream_failed")
                continue
            await self._stream(exchange, name, send)
            return None
        return reply

    async def _stream(self, exchange: Exchange, name: str, send: Send) -> None:
        async with exchange:
            headers = with_ours(exchange.headers, [(b"x-request-id", name.encode())])
            await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
            try:
                async for chunk in exchange:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except UpstreamBroken as error:
                logger.info("a read broke off: %s", error.reason)
                return  # without a last message the server cuts the connection: an incomplete body
            await send({"type": "http.response.body", "body": b""})

    def _one_pool_each(self) -> Iterable[str]:
        """A pool of each backend that takes work."""
        up = (pool for pool, line in self._gate.controller.lines.items() if line.pool.open)
        return {self._backend_of(pool).name: pool for pool in up}.values()
