"""Wiring: builds the pieces from the settings and ties them into one ASGI app."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits, Mode
from proxy.api import state
from proxy.api.answers import wrong_method
from proxy.api.asgi import Receive, Scope, Send, answer
from proxy.api.gate import Gate
from proxy.api.inference import Handler
from proxy.api.keys import Door, KeysError, read_keys
from proxy.api.own import Own
from proxy.api.paths import INFERENCE, family_of, is_read, methods_of
from proxy.api.reads import Reads
from proxy.api.replies import http_error
from proxy.api.tokenizer_check import TokenizerCheck
from proxy.settings import Settings, SettingsError
from proxy.telemetry.decision_log import DecisionLog
from proxy.telemetry.loop_lag import watch_loop_lag
from proxy.telemetry.metrics import Metrics
from proxy.tokens.sizer import Sizer
from proxy.upstream.backend import Backend
from proxy.upstream.client import make_client

logger = logging.getLogger("proxy")


def limits_of(settings: Settings) -> Limits:
    """The core's limits, from the operator's settings."""
    return Limits(
        mode=Mode(settings.mode),
        pool_headroom=settings.pool_headroom,
        short_prefill_tokens=settings.short_prefill_tokens,
        express_share=settings.express_share,
        max_long_prefills=settings.max_long_prefills,
        session_hold_seconds=settings.session_hold_seconds,
        slice_seconds=settings.prefill_slice_seconds,
        slice_max_tokens=settings.prefill_slice_max_tokens,
        max_long_contexts=settings.max_long_contexts,
        long_tier_tokens=settings.long_tier_tokens,
        strict_models=settings.strict_models,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_bypass_seconds=settings.max_bypass_seconds,
        bypass_budget=settings.bypass_budget,
        max_queue_seconds=settings.max_queue_seconds,
        max_queue_requests=settings.max_queue_requests,
        max_queue_tokens=settings.max_queue_tokens,
        output_reserve_quantile=settings.output_reserve_quantile,
        output_reserve_cap=settings.output_reserve_cap,
    )


def door_of(settings: Settings) -> Door:
    """Who may come in. Raises SettingsError where the keys file cannot be used."""
    path, keys = settings.api_keys_file, None
    if path is not None:
        try:
            keys = read_keys(path)
        except KeysError as error:
            raise SettingsError(f"PROXY_API_KEYS_FILE={str(path)!r}: {error}") from None
    return Door(keys, tenant_header=settings.tenant_header)


class App:
    """The ASGI app on the clients' port, and the operators' app where that is another one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        template = settings.chat_template
        self.sizer = Sizer(
            tokenizer_path=settings.tokenizer_path,
            chat_template=None if template is None else Path(template),
        )
        self.metrics = Metrics(
            lambda: state.snapshot(self.gate),
            mode=settings.mode,
            max_queue_seconds=settings.max_queue_seconds,
        )
        self.decisions = None
        if settings.decision_log is not None:
            dropped = self.metrics.decision_lines_dropped
            self.decisions = DecisionLog(settings.decision_log, dropped=dropped)
        self.gate = Gate(
            Controller(limits_of(settings)),
            self.metrics,
            urge=self._urge,
            decisions=self.decisions,
            on_pool_up=lambda pool: self.tokenizer_check.pool_up(pool),
        )
        self.tokenizer_check = TokenizerCheck(self.sizer, self.backend_of)
        self.client = make_client(connect_seconds=settings.connect_seconds)
        self.backends = {
            spec.name: Backend(
                spec,
                listener=self.gate,
                client=self.client,
                poll_seconds=settings.poll_seconds,
                connect_seconds=settings.connect_seconds,
                stall_seconds=settings.stall_seconds,
            )
            for spec in settings.backend_specs()
        }
        self.door = door_of(settings)
        own = Own(settings, self.gate, self.sizer, self.metrics)
        apart = settings.admin_address is not None
        self._inference = Handler(settings, self.sizer, self.gate, self.backend_of, self.metrics, self.door)
        self._reads = Reads(settings, self.gate, self.backend_of, self.door)
        self._live = own.live
        self._rest = _router([*own.probes(), *([] if apart else own.admin())])
        self.admin = _router([*own.probes(), *own.admin()]) if apart else None

    def backend_of(self, pool: str) -> Backend:
        """The backend that a pool belongs to."""
        return self.backends[pool.partition("/")[0]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            api = INFERENCE.get(path)
            if api is not None and scope["method"] == "POST":
                await self._inference.serve(api, scope, receive, send)
                return
            if is_read(scope["method"], path):
                await self._reads.serve(scope, receive, send)
                return
            if allowed := methods_of(path):
                reply = wrong_method(family_of(path), scope["method"], path, allowed)
                await answer(send, reply)
                return
        await self._rest(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Backends are watched and the counter is loaded inside; all is closed on the way out."""
        self._say_who_may_come_in()
        lag = asyncio.create_task(watch_loop_lag(self.metrics.loop_lag))
        try:
            for backend in self.backends.values():
                await backend.start()
            await self.sizer.load()
            yield
        finally:
            await self.abort_running()
            await self._inference.close()
            self.tokenizer_check.close()
            self.gate.close()
            self.sizer.close()
            await self.client.aclose()
            lag.cancel()
            await asyncio.wait({lag})
            if self.decisions is not None:
                self.decisions.close()

    def end_viewers(self) -> None:
        """Ends the streams of `/admission/live`: they have no end of their own to wait for."""
        self._live.close()

    async def abort_running(self) -> None:
        """Ends all requests at the servers, within seconds; their clients are told. Nothing more is sent."""
        await asyncio.gather(*(backend.close() for backend in self.backends.values()))

    def _say_who_may_come_in(self) -> None:
        keys = self.door.keys
        if keys is None:
            logger.warning("PROXY_API_KEYS_FILE is not set: every client that can reach the proxy is served")
            return
        logger.info("%d keys of %d tenants are known", len(keys), len(keys.tenants))
        if self.settings.tenant_header is not None:
            logger.warning(
                "PROXY_TENANT_HEADER has no effect beside PROXY_API_KEYS_FILE: keys name the tenant"
            )

    def _urge(self, pool: str) -> None:
        self.backend_of(pool).urge()


def _router(routes: list[Route]) -> Starlette:
    app = Starlette(routes=list[Route | Mount](routes), exception_handlers={HTTPException: http_error})
    app.router.redirect_slashes = False  # it would send clients to wherever their Host header says
    return app
