"""Traces, where OpenTelemetry is installed (extra `otel`) and configured by its own OTEL_* variables.

Otherwise nothing of it is imported, and each request meets three methods that do nothing.
`proxy.telemetry.otel` is the other side of this interface.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger("proxy.tracing")

Headers = list[tuple[bytes, bytes]]

#: Any of these switches tracing on; the SDK reads the others (sampler, headers, service name ...) itself.
SWITCHES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a span says of a request. None: it never got that far. Moments are of `time.monotonic`."""

    outcome: str
    failed: bool  # the server's or the proxy's fault
    status: int
    tenant: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    slices: int
    lane: str | None = None
    reason: str | None = None
    backend: str | None = None
    queue_wait_seconds: float | None = None
    dispatched_at: float | None = None
    first_token_at: float | None = None


class Span(Protocol):
    """One request."""

    @property
    def recording(self) -> bool:
        """Whether facts are worth gathering."""

    @property
    def trace_id(self) -> str | None:
        """32 hex digits, for the log."""

    def passed_on(self, headers: Headers) -> Headers:
        """The headers to send upstream, so that the server's spans become children of this one."""

    def end(self, facts: Facts) -> None:
        """The request is over."""


class Tracer(Protocol):
    """Where spans come from."""

    def start(self, path: str, request_id: str, headers: Headers) -> Span:
        """A request came on `path`; its `headers` may name the trace that it belongs to."""

    async def close(self) -> None:
        """Sends what is left, within seconds."""


class NoSpan:
    """A request that nobody traces."""

    __slots__ = ()
    recording = False
    trace_id = None

    def passed_on(self, headers: Headers) -> Headers:
        return headers

    def end(self, facts: Facts) -> None:
        """Nothing to say it to."""


NO_SPAN = NoSpan()


class NoTracer:
    """Tracing is off."""

    __slots__ = ()

    def start(self, path: str, request_id: str, headers: Headers) -> Span:
        return NO_SPAN

    async def close(self) -> None:
        """Nothing is open."""


NO_TRACER = NoTracer()


def make_tracer(environ: Mapping[str, str] = os.environ) -> Tracer:
    """The tracer that the environment asks for. Raises nothing: without it the proxy works as well."""
    asked = [name for name in SWITCHES if environ.get(name)]
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    if not asked or exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NO_TRACER
    if exporter not in ("otlp", "console"):
        logger.warning("no traces: OTEL_TRACES_EXPORTER is %s; otlp, console or none is allowed", exporter)
        return NO_TRACER
    try:
        from proxy.telemetry.otel import make_otel_tracer
    except ImportError as error:
        logger.warning(
            "no traces: %s is set, but %s. Install sglang-admission-proxy[otel]", ", ".join(asked), error
        )
        return NO_TRACER
    if "grpc" in (
        environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
        environ.get("OTEL_EXPORTER_OTLP_PROTOCOL"),
    ):
        logger.warning("traces are sent as http/protobuf (port 4318), not as grpc")
    return make_otel_tracer(exporter)
