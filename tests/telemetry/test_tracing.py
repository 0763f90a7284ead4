"""Traces: off they cost nothing; on, each request is one span, whose context goes on to the server."""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy import app as wiring
from proxy.telemetry.otel import OtelTracer, make_otel_tracer
from proxy.telemetry.tracing import NO_SPAN, NO_TRACER, SWITCHES, Facts, Headers, make_tracer
from tests.fakes import FakeServer, Received, Wire, chat_stream
from tests.proxies import proxy_before
from tests.raw_http import chat
from tests.waiting import eventually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


# --- off ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"},
        {**COLLECTOR, "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_without_a_place_to_send_them_to_there_are_no_traces(environ: dict[str, str]) -> None:
    assert make_tracer(environ) is NO_TRACER


def test_an_exporter_that_is_not_known_is_said_and_nothing_is_traced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert make_tracer({"OTEL_TRACES_EXPORTER": "zipkin"}) is NO_TRACER
    assert "zipkin" in caplog.text


def test_without_the_extra_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "proxy.telemetry.otel", None)
    assert make_tracer(COLLECTOR) is NO_TRACER
    assert "sglang-admission-proxy[otel]" in caplog.text


def test_nothing_of_opentelemetry_is_imported_unless_it_is_asked_for() -> None:
    code = (
        "import os, sys\n"
        f"for name in {SWITCHES}: os.environ.pop(name, None)\n"
        "from proxy.app import App\nfrom proxy.settings import Settings\nApp(Settings())\n"
        "sys.exit(any(name.split('.')[0] == 'opentelemetry' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_request_that_is_not_traced_costs_less_than_a_microsecond() -> None:
    headers: Headers = [(b"accept", b"*/*")]

    def once(rounds: int = 20_000) -> float:
        began = time.perf_counter()
        for _ in range(rounds):
            span = NO_TRACER.start("/v1/completions", "id", headers)
            if span.passed_on(headers) is not headers or span.trace_id or span.recording:
                raise AssertionError
        return (time.perf_counter() - began) / rounds

    assert min(once() for _ in range(10)) < 1e-6
    assert NO_TRACER.start("/", "id", headers) is NO_SPAN


# --- on -------------------------------------------------------------------------------------------


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What the proxies of this test have traced."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(wiring, "make_tracer", lambda: OtelTracer(SimpleSpanProcessor(exporter)))
    yield exporter
    exporter.shutdown()


@pytest_asyncio.fixture
async def fake(one_vocabulary: None) -> AsyncIterator[FakeServer]:
    server = await FakeServer().start()
    yield server
    await server.stop()


async def only_span(spans: InMemorySpanExporter) -> ReadableSpan:
    await eventually(lambda: len(spans.get_finished_spans()) == 1)
    return spans.get_finished_spans()[0]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    return dict(span.attributes)


def sent_header(fake: FakeServer, name: str) -> str | None:
    return fake.posts()[-1].headers.get(name)


def logged_trace(caplog: pytest.LogCaptureFixture) -> str | None:
    fields = [getattr(record, "fields", {}) for record in caplog.records if record.name == "proxy.request"]
    found: str | None = fields[-1].get("trace_id")
    return found


async def test_a_stream_leaves_one_span_that_tells_its_story(
    fake: FakeServer, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy.request")

    async def stream(_: Received, wire: Wire) -> None:
        await wire.begin()
        for chunk in chat_stream():
            await wire.chunk(chunk)
        await wire.end()

    fake.answer = stream
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(chat(stream=True), headers=[("x-request-id", "mine-1")])
        assert reply.status == 200
        span = await only_span(spans)
    found = attributes(span)
    assert (span.name, span.kind, span.parent) == ("POST /v1/chat/completions", SpanKind.SERVER, None)
    assert found["sglang_proxy.request_id"] == "mine-1"
    assert found["sglang_proxy.lane"] == "short"
    assert found["sglang_proxy.outcome"] == "completed"
    assert found["sglang_proxy.backend"] == "b0"
    assert found["sglang_proxy.prefill_slices"] == 0
    assert found["sglang_proxy.queue_wait_seconds"] >= 0
    assert found["gen_ai.usage.input_tokens"] > 0
    assert found["http.response.status_code"] == 200
    assert span.start_time is not None
    assert span.end_time is not None
    assert [event.name for event in span.events] == ["dispatched", "first_token"]
    moments = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert all(later - earlier > -5_000_000 for earlier, later in pairwise(moments))
    assert span.status.status_code is StatusCode.UNSET
    assert span.resource.attributes["service.name"] == "sglang-admission-proxy"
    assert span.context is not None
    assert logged_trace(caplog) == f"{span.context.trace_id:032x}"


async def test_the_clients_trace_goes_on_and_the_server_gets_our_span_as_its_parent(
    fake: FakeServer, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy.request")
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat(), headers=[("traceparent", PARENT), ("tracestate", "a=1"), ("x-other", "kept")])
        span = await only_span(spans)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert span.context is not None
    assert sent_header(fake, "traceparent") == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert sent_header(fake, "tracestate") == "a=1"
    assert sent_header(fake, "x-other") == "kept"
    assert logged_trace(caplog) == TRACE


@pytest.mark.parametrize("hostile", ["", "00-zz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 9000])
async def test_a_traceparent_that_is_none_begins_a_trace_of_our_own(
    fake: FakeServer, spans: InMemorySpanExporter, hostile: str
) -> None:
    async with proxy_before(fake) as proxy:
        assert (await proxy.ask(chat(), headers=[("traceparent", hostile)])).status == 200
        span = await only_span(spans)
    assert span.parent is None
    assert span.context is not None
    ours = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0"
    assert (sent_header(fake, "traceparent") or "").startswith(ours)


async def test_an_unsampled_trace_is_passed_on_and_not_recorded(
    fake: FakeServer, spans: InMemorySpanExporter
) -> None:
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat(), headers=[("traceparent", PARENT.removesuffix("01") + "00")])
    assert spans.get_finished_spans() == ()
    passed_on = sent_header(fake, "traceparent") or ""
    assert passed_on.startswith(f"00-{TRACE}-")
    assert passed_on.endswith("-00")


async def test_a_refusal_has_its_reason_and_is_no_error(
    fake: FakeServer, spans: InMemorySpanExporter
) -> None:
    fake.pool_tokens = 2000
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask({"model": "tiny", "prompt": [7] * 5000}, "/v1/completions")
        assert reply.status == 400
        span = await only_span(spans)
    found = attributes(span)
    assert found["sglang_proxy.outcome"] == "refused"
    assert found["sglang_proxy.reason"] == "context_length_exceeded"
    assert "sglang_proxy.backend" not in found
    assert span.events == ()
    assert span.status.status_code is StatusCode.UNSET


async def test_a_server_that_fails_makes_the_span_an_error(
    fake: FakeServer, spans: InMemorySpanExporter
) -> None:
    async def cut(_: Received, wire: Wire) -> None:
        wire.writer.transport.abort()

    fake.answer = cut
    async with proxy_before(fake) as proxy:
        assert (await proxy.ask(chat())).status == 502
        span = await only_span(spans)
    assert attributes(span)["sglang_proxy.outcome"] == "failed"
    assert span.status.status_code is StatusCode.ERROR


async def test_no_word_of_a_prompt_is_in_a_span(fake: FakeServer, spans: InMemorySpanExporter) -> None:
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat("the secret word"), headers=[("authorization", "Bearer sk-secret")])
        span = await only_span(spans)
    assert "secret" not in span.to_json()


async def test_with_traces_off_the_clients_context_passes_unchanged(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat(), headers=[("traceparent", PARENT), ("tracestate", "a=1")])
    assert sent_header(fake, "traceparent") == PARENT
    assert sent_header(fake, "tracestate") == "a=1"


# --- a collector ----------------------------------------------------------------------------------


async def test_spans_reach_a_collector_as_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []
    paths: list[str] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        paths.append(head.split(" ")[1])
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        bodies.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        tracer = make_tracer()
        span = tracer.start("/generate", "r-1", [])
        span.end(_facts())
        await tracer.close()
        await eventually(lambda: bool(bodies))
    assert paths == ["/v1/traces"]
    assert b"POST /generate" in bodies[0]
    assert b"sglang_proxy.lane" in bodies[0]


async def test_a_collector_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.telemetry.otel.CLOSE_SECONDS", 0.3)

    threads = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait there for ever
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        tracer = make_otel_tracer("otlp")
        tracer.start("/generate", "r-1", []).end(_facts())
        began = time.monotonic()
        await tracer.close()
        assert 0.2 < time.monotonic() - began < 1.0
    await eventually(lambda: threading.active_count() <= threads)


def _facts() -> Facts:
    return Facts(
        outcome="completed",
        failed=False,
        status=200,
        tenant="default",
        model="tiny",
        prompt_tokens=10,
        completion_tokens=5,
        slices=2,
        lane="long",
    )
