"""Spans by OpenTelemetry. Imported only where tracing is on; needs the extra `otel`."""

import asyncio
import contextlib
import sys
import threading
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy.telemetry.tracing import Facts, Headers

SERVICE_NAME = "sglang-admission-proxy"
CLOSE_SECONDS = 3.0  # a collector that does not answer must not hold the process up
LONGEST_CONTEXT_BYTES = 512  # as the standard has it; the propagator would complain of each
NANOSECONDS = 1_000_000_000

_PROPAGATOR = TraceContextTextMapPropagator()  # W3C only: baggage is the client's, and none of our business
_CONTEXT = (b"traceparent", b"tracestate")


def make_otel_tracer(exporter: str) -> "OtelTracer":
    """A tracer whose spans go out in batches from a thread of their own. `exporter`: otlp or console."""
    sink: SpanExporter = ConsoleSpanExporter(out=sys.stderr) if exporter == "console" else OTLPSpanExporter()
    return OtelTracer(BatchSpanProcessor(sink))


class OtelTracer:
    """Spans through `processor`; sampler, limits and resource are as the OTEL_* variables say."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("proxy")

    def start(self, path: str, request_id: str, headers: Headers) -> "OtelSpan":
        """A server span, child of the client's where its `traceparent` is valid."""
        carrier: dict[str, str] = {}
        for name, value in headers:
            if name in _CONTEXT and len(value) <= LONGEST_CONTEXT_BYTES:
                text, key = value.decode("latin-1"), name.decode()
                carrier[key] = f"{carrier[key]},{text}" if key in carrier else text
        span = self._tracer.start_span(
            f"POST {path}",
            _PROPAGATOR.extract(carrier),
            SpanKind.SERVER,
            {"http.request.method": "POST", "url.path": path, "sglang_proxy.request_id": request_id},
        )
        return OtelSpan(span)

    async def close(self) -> None:
        """Sends what is left, unless the collector keeps it waiting."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop did not wait so long
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await done.wait()


class OtelSpan:
    """One request's span."""

    __slots__ = ("_span", "recording", "trace_id")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.recording = span.is_recording()
        self.trace_id: str | None = format_trace_id(span.get_span_context().trace_id)

    def passed_on(self, headers: Headers) -> Headers:
        """This span's context in place of the client's, sampled or not."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        ours = [(name.encode(), value.encode("latin-1")) for name, value in carrier.items()]
        return [*(header for header in headers if header[0] not in _CONTEXT), *ours]

    def end(self, facts: Facts) -> None:
        """Attributes and moments, then the end."""
        span = self._span
        for name, value in _attributes(facts).items():
            if value is not None:
                span.set_attribute(name, value)
        # spans are in wall time, moments in monotonic time
        offset = time.time_ns() - time.monotonic_ns()
        for event, at in (("dispatched", facts.dispatched_at), ("first_token", facts.first_token_at)):
            if at is not None:
                span.add_event(event, timestamp=offset + int(at * NANOSECONDS))
        if facts.failed:
            span.set_status(StatusCode.ERROR, facts.reason or facts.outcome)
        span.end()


def _attributes(facts: Facts) -> dict[str, str | int | float | None]:
    return {
        "http.response.status_code": facts.status or None,
        "gen_ai.request.model": facts.model or None,
        "gen_ai.usage.input_tokens": facts.prompt_tokens or None,
        "gen_ai.usage.output_tokens": facts.completion_tokens or None,
        "sglang_proxy.outcome": facts.outcome,
        "sglang_proxy.reason": facts.reason,
        "sglang_proxy.lane": facts.lane,
        "sglang_proxy.tenant": facts.tenant or None,
        "sglang_proxy.backend": facts.backend,
        "sglang_proxy.queue_wait_seconds": facts.queue_wait_seconds,
        "sglang_proxy.prefill_slices": facts.slices,
    }
