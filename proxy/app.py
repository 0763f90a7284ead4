"""Wiring: builds the pieces from the settings and ties them into one ASGI app."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
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
from proxy.api.inference import serve
from proxy.api.keys import Door
from proxy.api.own import Own, Reloaded
from proxy.api.paths import INFERENCE, family_of, is_read, methods_of
from proxy.api.reads import Reads
from proxy.api.replies import http_error
from proxy.api.room import LARGEST_BODIES, Room
from proxy.api.services import Services
from proxy.api.tokenizer_check import TokenizerCheck
from proxy.backend_spec import BackendSpec
from proxy.fleet import Fleet
from proxy.reload import Reloader, keys_of
from proxy.settings import Settings, load_settings
from proxy.telemetry.decision_log import DecisionLog
from proxy.telemetry.loop_lag import watch_loop_lag
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.tracing import make_tracer
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


class App:
    """The ASGI app on the clients' port, and the operators' app where that is another one."""

    def __init__(self, settings: Settings, load: Callable[[], Settings] = load_settings) -> None:
        """Raises SettingsError where a file that they name is wrong. `load` is how they are read again."""
        self.settings = settings
        template = settings.chat_template
        self.sizer = Sizer(
            tokenizer_path=settings.tokenizer_path,
            chat_template=None if template is None else Path(template),
            image_family=settings.image_family,
        )
        self.metrics = Metrics(
            lambda: state.snapshot(self.gate, self.tokenizer_check.verdicts),
            mode=settings.mode,
            max_queue_seconds=settings.max_queue_seconds,
        )
        self.decisions = None
        if settings.decision_log is not None:
            dropped = self.metrics.decision_lines_dropped
            self.decisions = DecisionLog(settings.decision_log, dropped=dropped)
        self.tokenizer_check = TokenizerCheck(self.sizer, self.backend_of)
        self.gate = Gate(
            Controller(limits_of(settings)),
            self.metrics,
            urge=self._urge,
            decisions=self.decisions,
            on_pool_up=self.tokenizer_check.pool_up,
        )
        self.client = make_client(connect_seconds=settings.connect_seconds)
        self.fleet = Fleet(self.gate, self._make_backend)
        self.fleet.add(settings.backend_specs())
        self.door = Door(keys_of(settings), tenant_header=settings.tenant_header)
        self._reloader = Reloader(
            settings, load, self._adopt, door=self.door, fleet=self.fleet, metrics=self.metrics
        )
        self.room = room = Room(LARGEST_BODIES * settings.max_body_bytes)
        checks = self.tokenizer_check.verdicts
        own = self._own = Own(settings, self.gate, self.sizer, self.metrics, room, self.reload, checks)
        apart = settings.admin_address is not None
        self.tracer = make_tracer()
        self.services = Services(
            settings, self.sizer, self.gate, self.backend_of, self.metrics, self.door, room, self.tracer
        )
        self._reads = Reads(self.services)
        self._live = own.live
        self._rest = _router([*own.probes(), *([] if apart else own.admin())])
        self.admin = _router([*own.probes(), *own.admin()]) if apart else None

    def backend_of(self, pool: str) -> Backend:
        """The backend that a pool belongs to."""
        return self.fleet.of(pool)

    async def reload(self) -> Reloaded:
        """Read limits, keys and servers again. A wrong file changes nothing."""
        return await self._reloader.reload()

    def reload_soon(self) -> None:
        """The same, from a signal."""

        async def reload() -> None:
            await self.reload()

        self.services.spawn(reload())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            api = INFERENCE.get(path)
            if api is not None and scope["method"] == "POST":
                await serve(self.services, api, scope, receive, send)
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
            await self.fleet.start()
            await self.sizer.load()
            self.tokenizer_check.counter_ready()
            yield
        finally:
            await self.abort_running()
            await self.services.close()
            self.tokenizer_check.close()
            self.gate.close()
            self.sizer.close()
            await self.client.aclose()
            lag.cancel()
            await asyncio.wait({lag})
            await self.tracer.close()
            if self.decisions is not None:
                self.decisions.close()

    def end_viewers(self) -> None:
        """Ends the streams of `/admission/live`: they have no end of their own to wait for."""
        self._live.close()

    async def abort_running(self) -> None:
        """Ends all requests at the servers, within seconds; their clients are told. Nothing more is sent."""
        await self.services.background.close()
        await self.fleet.close()

    def _make_backend(self, spec: BackendSpec) -> Backend:
        return Backend(
            spec,
            listener=self.gate,
            client=self.client,
            poll_seconds=self.settings.poll_seconds,
            connect_seconds=self.settings.connect_seconds,
            stall_seconds=self.settings.stall_seconds,
        )

    def _adopt(self, settings: Settings) -> None:
        """Limits have changed: they count from the next request on, and for those that wait."""
        self.settings = self.services.settings = self._own.settings = settings
        self.metrics.adopt(mode=settings.mode, max_queue_seconds=settings.max_queue_seconds)
        self.gate.adopt(limits_of(settings))

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
