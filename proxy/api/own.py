"""The proxy's own endpoints: health, readiness, metrics, status, explain, the live page."""

import base64
import binascii
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from proxy.admission.types import Request
from proxy.admission.view import explain
from proxy.api import state
from proxy.api.admission_request import admission_request
from proxy.api.answers import bad_request, body_too_large, body_too_slow, no_room
from proxy.api.asgi import BodyTooLarge, ClientGone, read_body
from proxy.api.bounds import check_model, check_sequences
from proxy.api.gate import Gate
from proxy.api.headers import wait_limit_seconds
from proxy.api.keys import Tenant
from proxy.api.live import Live
from proxy.api.replies import JsonReply, response_of
from proxy.api.room import NoRoom, Room
from proxy.settings import Settings
from proxy.telemetry.metrics import CONTENT_TYPE, Metrics
from proxy.tokens.selfcheck import SelfCheck
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sizer import Sizer

LOOPBACK = ("127.0.0.1", "::1")
# Browsers ask for a password then; it is the admin key, with any user name.
CHALLENGE = {"www-authenticate": 'Basic realm="sglang-admission-proxy", charset="UTF-8"'}
Endpoint = Callable[[HttpRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of reading the settings again.

    `error`: why nothing was changed; `needs_restart`: variables that differ and stay as they were;
    `ignored`: a sentence for each variable that is none.
    """

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    error: str | None = None


class Own:
    """Routes of `/admission/*`, `/metrics`, `/livez`, `/ready` and `/health`."""

    def __init__(
        self,
        settings: Settings,
        gate: Gate,
        sizer: Sizer,
        metrics: Metrics,
        room: Room,
        reload: Callable[[], Awaitable[Reloaded]],
        checks: Mapping[str, SelfCheck],
    ) -> None:
        """`checks`: what each server last said of the tokenizer."""
        self.settings = settings
        self._reload_settings = reload
        self._gate = gate
        self._sizer = sizer
        self._metrics = metrics
        self._room = room
        self._checks = checks
        self.live = Live(gate)
        key = settings.admin_key
        self._admin_key = None if key is None else key.get_secret_value().encode()

    def probes(self) -> list[Route]:
        """What a load balancer or a kubelet asks, on the clients' own port."""
        return [
            Route("/livez", self._livez),
            Route("/ready", self._ready),
            Route("/health", self._health),
        ]

    def admin(self) -> list[Route]:
        """What an operator asks; on another port where one is set."""
        return [
            Route("/metrics", self._metrics_text),
            Route("/admission/status", self._guarded(self._status)),
            Route("/admission/explain", self._guarded(self._explain), methods=["GET", "POST"]),
            Route("/admission/reload", self._reload, methods=["POST"]),
            Route("/admission/live", self._guarded(self.live.page)),
            Route("/admission/live/events", self._guarded(self.live.events)),
        ]

    async def _livez(self, _: HttpRequest) -> Response:
        return JsonReply({"status": "alive"})

    async def _ready(self, _: HttpRequest) -> Response:
        """Counter loaded, a pool known, not draining."""
        missing = []
        if not self._sizer.ready:
            missing.append("the token counter is still loading")
        if not self._gate.controller.lines:
            missing.append("no backend has reported a pool yet")
        if self._gate.controller.draining:
            missing.append("draining")
        status = "not ready" if missing else "ready"
        return JsonReply({"status": status, "missing": missing}, status_code=503 if missing else 200)

    async def _health(self, _: HttpRequest) -> Response:
        """Can a backend take work?"""
        up = [name for name, line in self._gate.controller.lines.items() if line.pool.up]
        body = {"status": "ok" if up else "no backend is up", "up": up, "down": self._gate.down_reasons}
        return JsonReply(body, status_code=200 if up else 503)

    async def _metrics_text(self, _: HttpRequest) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

    async def _status(self, _: HttpRequest) -> Response:
        return JsonReply(state.status(self._gate) | {"counting": state.counting(self._sizer, self._checks)})

    async def _reload(self, http: HttpRequest) -> Response:
        """It changes what the proxy does: without an admin key only this machine may ask for it."""
        self._check_operator(http)
        if self._admin_key is None:
            self._check_loopback(http)
        reloaded = await self._reload_settings()
        return JsonReply(asdict(reloaded), status_code=200 if reloaded.error is None else 409)

    async def _explain(self, http: HttpRequest) -> Response:
        try:
            request = self._described(http) if http.method != "POST" else await self._sized(http)
        except BadRequest as error:
            return response_of(bad_request(Api.CHAT, error.message, error.param))
        except BodyTooLarge as error:
            return response_of(body_too_large(Api.CHAT, error.limit_bytes))
        except NoRoom:
            return response_of(no_room(Api.CHAT))
        except TimeoutError:
            return response_of(body_too_slow(Api.CHAT))
        except ClientGone:
            return Response(status_code=499)  # nobody is there to read it
        explanation = explain(self._gate.controller, request, self._gate.clock())
        ttft = explanation.predicted_wait_seconds + explanation.predicted_prefill_seconds
        return JsonReply(
            asdict(explanation)
            | {
                "prompt_tokens": request.prompt_tokens,
                "max_tokens": request.max_tokens,
                "wait_limit_seconds": request.wait_limit_seconds,
                "predicted_ttft_seconds": ttft,
            }
        )

    def _described(self, http: HttpRequest) -> Request:
        """A request of so many tokens, as the query says."""
        tokens = _whole(http, "tokens")
        if tokens is None:
            raise BadRequest(
                "say how many prompt tokens: /admission/explain?tokens=180000&max_tokens=500", "tokens"
            )
        return Request(
            rid="explain",
            prompt_tokens=max(1, tokens),
            max_tokens=_whole(http, "max_tokens"),
            model=http.query_params.get("model", ""),
            wait_limit_seconds=self._wait_limit(http),
        )

    async def _sized(self, http: HttpRequest) -> Request:
        """A real request body, counted as if it had been sent."""
        share = self._room.share()
        try:
            body = await read_body(http.scope, http.receive, self.settings.max_body_bytes, share)
            api = _api_of(body)
            sized = await self._sizer.size(api, body)
        finally:
            share.drop()
        check_model(sized.shape)
        check_sequences(sized.shape)
        return admission_request(
            "explain",
            api,
            sized,
            Tenant("default"),
            http.scope["headers"],
            wait_limit_seconds=self._wait_limit(http),
            short_prefill_tokens=self.settings.short_prefill_tokens,
        )

    def _wait_limit(self, http: HttpRequest) -> float:
        most = self.settings.max_queue_seconds_limit
        return wait_limit_seconds(http.scope["headers"], self.settings.max_queue_seconds, most)

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(http: HttpRequest) -> Response:
            self._check_operator(http)
            return await endpoint(http)

        return guarded

    def _check_operator(self, http: HttpRequest) -> None:
        """The admin key where one is set; else, where clients have keys, loopback only."""
        if self._admin_key is not None:
            if not secrets.compare_digest(_given_key(http), self._admin_key):
                raise HTTPException(401, "this endpoint needs the admin key", CHALLENGE)
        elif self.settings.api_keys_file is not None:
            self._check_loopback(http)

    def _check_loopback(self, http: HttpRequest) -> None:
        if http.client is None or http.client.host not in LOOPBACK:
            raise HTTPException(403, "this endpoint answers loopback only; set PROXY_ADMIN_KEY to open it")


def _api_of(body: bytes) -> Api:
    """Which API a body was written for: `messages` is chat, `prompt` completions, else generate."""
    if b'"messages"' in body:
        return Api.CHAT
    return Api.COMPLETIONS if b'"prompt"' in body else Api.GENERATE


def _given_key(http: HttpRequest) -> bytes:
    """The key a caller shows: as bearer, as `x-admin-key`, or as the password a browser asked for."""
    scheme, _, given = http.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip().encode()
    if scheme.lower() != "basic":
        return http.headers.get("x-admin-key", "").strip().encode()
    try:
        return base64.b64decode(given.strip()).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _whole(http: HttpRequest, name: str) -> int | None:
    value = http.query_params.get(name)
    if value is None:
        return None
    if not value.isdecimal() or len(value) > 12:
        raise BadRequest(f"{name} must be a whole number of tokens", name)
    return int(value)
