"""What is forwarded uncounted: harmless reads (`/v1/models`, `/tokenize`, ...), to any backend that is up;
polls and cancellations of responses, to the one that has them."""

import logging
import secrets
from collections.abc import Iterable

from proxy.api.answers import (
    Answer,
    bad_request,
    body_too_large,
    body_too_slow,
    no_backend,
    no_response,
    no_room,
    unauthorized,
    upstream_error,
)
from proxy.api.asgi import BodyTooLarge, ClientGone, Receive, Scope, Send, Watch, answer, read_body
from proxy.api.headers import Headers, forwarded, request_id, with_ours
from proxy.api.keys import Tenant
from proxy.api.paths import family_of, response_of
from proxy.api.room import NoRoom
from proxy.api.services import Services
from proxy.tokens.shape import Api
from proxy.upstream.call import Call
from proxy.upstream.errors import BodyRefused, UpstreamBroken, UpstreamUnreachable
from proxy.upstream.exchange import Exchange
from proxy.upstream.kept_response import read_look

logger = logging.getLogger("proxy.reads")

READ_BODY_BYTES = 16 * 1024 * 1024  # to be tokenized on the server's own loop: not without bound
LOOKED_AT_BYTES = 1024 * 1024  # of an answer about a response; a larger one is none that still runs


class Reads:
    """Forwards a read to the first backend that answers."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one read."""
        services = self._services
        api = family_of(scope["path"])
        name = request_id(scope["headers"], secrets.token_hex(16))
        tenant = services.door.tenant_of(scope["headers"])
        if tenant is None:
            await answer(send, unauthorized(api), name)
            return
        limit = min(READ_BODY_BYTES, services.settings.max_body_bytes)
        share = services.room.share()
        try:
            body = await read_body(scope, receive, limit, share)
            async with Watch(receive):
                reply = await self._forward(api, tenant, scope, body, name, send)
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

    async def _forward(
        self, api: Api, tenant: Tenant, scope: Scope, body: bytes, name: str, send: Send
    ) -> Answer | None:
        """Forwards to the first backend that answers; the answer when none does. Reads may be repeated."""
        services, lines = self._services, self._services.gate.controller.lines
        query = scope["query_string"].decode("latin-1")
        reply = no_backend(api)
        pools = self._one_pool_each()
        response = response_of(scope["path"])
        if response is not None:
            kept = services.responses.find(tenant.name, response)
            if kept is None or kept.pool not in lines:
                return no_response(api, "response_id", gone=kept is not None)
            pools = (kept.pool,)
        for pool in pools:
            authorization = services.settings.forward_authorization
            call = Call(
                method=scope["method"],
                path=scope["path"] + ("?" + query if query else ""),
                pool=pool,
                headers=forwarded(scope["headers"], authorization=authorization),
                body=body,
            )
            try:
                exchange = await services.backend_of(pool).send(call)
            except UpstreamUnreachable as error:
                logger.info("%s %s: %s: %s", scope["method"], scope["path"], pool, error.reason)
                reply = upstream_error(api, 502, "The backend did not answer.", "upstream_failed")
                continue
            ours = [(b"x-request-id", name.encode())]
            start = await self._stream(exchange, ours, send, LOOKED_AT_BYTES if response is not None else 0)
            if response is not None and start is not None:
                services.background.seen(response, read_look(exchange.status, start))
            return None
        return reply

    async def _stream(self, exchange: Exchange, ours: Headers, send: Send, most: int) -> bytes | None:
        """Forwards an answer; gives back its first bytes, `most` of them; None when it broke off."""
        start = b""
        async with exchange:
            headers = with_ours(exchange.headers, ours)
            await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
            try:
                async for chunk in exchange:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    start += chunk[: most - len(start)]
            except UpstreamBroken as error:
                logger.info("a read broke off: %s", error.reason)
                return None  # without a last message the server cuts the connection: an incomplete body
            await send({"type": "http.response.body", "body": b""})
        return start

    def _one_pool_each(self) -> Iterable[str]:
        """A pool of each backend that takes work."""
        up = (pool for pool, line in self._services.gate.controller.lines.items() if line.pool.open)
        return {self._services.backend_of(pool).name: pool for pool in up}.values()
