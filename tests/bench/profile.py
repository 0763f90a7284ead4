"""Where the microseconds go: the proxy in this process, its layers' own time for a request and for a chunk.

    python -m tests.bench.profile

The functions of each layer are wrapped (`spans`): a layer's time is the CPU time of its functions less
what they call of other layers, so that nothing that waits counts. What is left of the thread's CPU time
is the event loop itself: task switches, timers, polling the engine, and reading from sockets. The same
load runs without wrappers as well; since wrappers disturb more than they take, the layers are scaled to
what that costs. The middle of several rounds.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from proxy.app import App
from proxy.serve import make_server
from proxy.settings import load_settings
from proxy.telemetry import logs
from tests.bench.meters import machine
from tests.bench.overhead import INTERVAL_US, POOL_TOKENS
from tests.bench.spans import OUTSIDE, Clock, Costs, costs_of_a_span, install
from tests.bench.tools import Tools, build, engine_server
from tests.load.process import free_port
from tests.load.proxy import REPOSITORY

CYCLE = "uvicorn.protocols.http.httptools_impl:RequestResponseCycle"
LAYERS: Mapping[str, tuple[str, ...]] = {
    "accept and parse": ("proxy.api.connection:BoundedProtocol.data_received",),
    "route": ("proxy.api.inference:serve",),
    "read body": ("proxy.api.asgi:read_body", f"{CYCLE}.receive"),
    "size": (
        "proxy.api.intake:take_in",
        "proxy.tokens.sizer:Sizer.size",
        "proxy.tokens.sizer:Sizer.wants_usage",
    ),
    "decide": (
        "proxy.api.admission_request:admission_request",
        "proxy.api.gate:Gate.submit",
        "proxy.api.gate:Gate.first_token",
        "proxy.api.gate:Gate.finish",
    ),
    "watch the client": (
        "proxy.api.asgi:Watch.__aenter__",
        "proxy.api.asgi:Watch.__aexit__",
        "proxy.api.asgi:Watch._wait",
    ),
    "build the request": (
        "proxy.api.flow:Flow._send",
        "proxy.upstream.sender:Sender._request",
        "proxy.upstream.request_bytes:head_of",
        "proxy.upstream.request_bytes:content_of",
    ),
    "keep the exchange": ("proxy.upstream.backend:Backend.send", "proxy.upstream.exchange:Exchange._open"),
    "connect": ("proxy.upstream.link:Link.send", "proxy.upstream.connection:Connection.ask"),
    "write to the server": ("proxy.upstream.connection:Connection._write",),
    "parse the answer": ("proxy.upstream.connection:Connection.data_received",),
    "observe": ("proxy.upstream.watch:AnswerWatch.see", "proxy.upstream.watch:AnswerWatch.finish"),
    "forward": (
        "proxy.api.streaming:forward",
        "proxy.upstream.exchange:Exchange.__anext__",
        f"{CYCLE}.send",
    ),
    "write to the client": ("proxy.api.connection:JoinedHead.write",),
    "metrics": (
        "proxy.api.record:Record.write",
        "proxy.telemetry.metrics:Metrics.request_done",
        "proxy.telemetry.metrics:Metrics.reserved_minus_actual",
    ),
    "log": ("proxy.telemetry.logs:request_line",),
}
LOOP = "event loop and reading"
MEASURED = "sum as measured, before scaling"
STREAMS_LONGER = 2.5  # than other loads: a chunk's share of its request becomes small

WARM_UP: Mapping[str, dict[str, float]] = {"requests": {"seconds": 0.3}, "streams": {"chunks": 20}}

Found = dict[str, float]  # microseconds, by layer


@dataclass(slots=True)
class Cost:
    """CPU time of the proxy's thread for `number` requests or chunks, and where it went."""

    cpu_ns: int
    number: int
    clock: Clock = field(default_factory=Clock)


async def load(tools: Tools, port: int, count: str, kind: str, options: Mapping[str, float]) -> Cost:
    """What a load cost, and how many of what `count` names were in it."""
    arguments = [*tools.client, kind, str(port), *(f"{name}={value}" for name, value in options.items())]
    begun = time.thread_time_ns()
    client = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await client.communicate()
    found: dict[str, Any] = json.loads(output)
    if client.returncode or found["errors"] or set(found["statuses"]) != {"200"}:
        raise RuntimeError(f"answers were missing or wrong: {found}")
    return Cost(time.thread_time_ns() - begun, found[count])


async def measured(tools: Tools, engine_url: str, seconds: float, clock: Clock) -> dict[str, Cost]:
    """What a request costs (one connection) and a chunk (64 streams x 40/s); `clock` then has no other."""
    port = free_port()
    app = App(load_settings({"PROXY_BACKENDS": engine_url, "PROXY_PORT": str(port)}))
    costs = {}
    async with app.running():
        server = make_server(app, "127.0.0.1", port)
        serving = asyncio.create_task(server.serve())
        while not (server.started and app.gate.controller.lines):
            await asyncio.sleep(0.01)
        gc.collect()
        gc.freeze()
        for name, (count, kind, options) in _loads(seconds).items():
            await load(tools, port, count, kind, {**options, **WARM_UP[kind]})
            clock.take()
            costs[name] = await load(tools, port, count, kind, options)
            costs[name].clock = clock.take()
        server.should_exit = True
        await serving
    return costs


def _loads(seconds: float) -> dict[str, tuple[str, str, dict[str, float]]]:
    chunks = max(20, round(STREAMS_LONGER * seconds * 1e6 / INTERVAL_US))
    streams: dict[str, float] = {"connections": 64, "chunks": chunks, "interval_us": INTERVAL_US}
    return {
        "request": ("requests", "requests", {"connections": 1, "seconds": seconds}),
        "chunk": ("chunks", "streams", streams),
    }


def profile(tools: Tools, engine_url: str, rounds: int, seconds: float) -> dict[str, Found]:
    """Microseconds by layer, of a request and of a chunk."""
    found: dict[str, list[Found]] = {"request": [], "chunk": []}
    clock, span = Clock(), costs_of_a_span()
    for _ in range(rounds):
        bare = _run(measured(tools, engine_url, seconds, clock))
        uninstall = install(LAYERS, clock)
        try:
            wrapped = _run(measured(tools, engine_url, seconds, clock))
        finally:
            uninstall()
        for name, each in found.items():
            each.append(by_layer(wrapped[name], span, bare[name].cpu_ns / bare[name].number))
    return {name: _middle(each) for name, each in found.items()}


def _run(work: Coroutine[Any, Any, dict[str, Cost]]) -> dict[str, Cost]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def by_layer(cost: Cost, span: Costs, bare_ns: float) -> Found:
    """Microseconds of one, which costs `bare_ns` without wrappers. What is of no layer is the loop's."""
    own = cost.clock.own_ns(span)
    found = {layer: max(0.0, own.get(layer, 0.0)) for layer in LAYERS}
    found[LOOP] = max(0.0, own.get(OUTSIDE, 0.0))
    measured_ns = sum(found.values())
    scaled = {layer: bare_ns * spent_ns / measured_ns / 1000 for layer, spent_ns in found.items()}
    return {**scaled, MEASURED: measured_ns / cost.number / 1000}


def _middle(rounds: Sequence[Found]) -> Found:
    return {layer: statistics.median(found[layer] for found in rounds) for layer in rounds[0]}


def table(found: Mapping[str, Found]) -> str:
    """One line a layer, and their sum."""
    request, chunk = found["request"], found["chunk"]
    lines = [f"{'microseconds':32} {'a request':>10} {'a chunk':>10}"]
    layers = [*LAYERS, LOOP]
    lines += [f"{layer:32} {request[layer]:10.1f} {chunk[layer]:10.2f}" for layer in layers]
    sums = [sum(each[layer] for layer in layers) for each in (request, chunk)]
    lines.append(f"{'sum':32} {sums[0]:10.1f} {sums[1]:10.2f}")
    lines.append(f"{MEASURED:32} {request[MEASURED]:10.1f} {chunk[MEASURED]:10.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises RuntimeError when answers were wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.profile", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load (default 2)")
    parser.add_argument("--out", default=str(REPOSITORY / "out"))
    chosen = parser.parse_args(arguments)
    tools = build(REPOSITORY / ".cache" / "bench")
    folder = Path(chosen.out) / f"profile-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    log_path = folder / "engine.log"
    engine = engine_server(tools.engine, log_path, pool_tokens=POOL_TOKENS, say=lambda _: None)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    logs.configure("info", "json", fd=nowhere)
    with engine:
        found = profile(tools, engine.base_url, chosen.rounds, chosen.seconds)
    kept = {"machine": machine(), "arguments": vars(chosen), "microseconds": found}
    (folder / "profile.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{table(found)}\n\n{kept['machine']}\n{folder / 'profile.json'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
