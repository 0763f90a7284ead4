"""The same loads through this proxy and through others, in turns, against the same fast engine.

    python3 -m venv /tmp/router && /tmp/router/bin/pip install sglang-router
    python3 -m venv /tmp/litellm && /tmp/litellm/bin/pip install 'litellm[proxy]'
    python -m tests.bench.peers --router /tmp/router --litellm /tmp/litellm

Either may be left out. Each runs as one process with what its manual says for one server. What they
decide for a request differs (docs/comparison.md): this is what each costs, not what it is worth.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench.meters import machine
from tests.bench.overhead import INTERVAL_US, POOL_TOKENS
from tests.bench.targets import medians
from tests.bench.tools import Tools, build
from tests.load.process import ServerProcess, free_port
from tests.load.proxy import REPOSITORY, ProxyServer

STREAMS = 64
SHOWN = (
    ("c1_p50", "added latency p50, one connection (ms)"),
    ("c1_p99", "added latency p99, one connection (ms)"),
    ("rate", "requests per second, 32 connections"),
    ("request_cpu", "CPU for 1,000 requests (s)"),
    ("delay_p50", "delay added to a chunk p50, 64 x 40/s (ms)"),
    ("delay_p99", "delay added to a chunk p99, 64 x 40/s (ms)"),
    ("pace", "64 x 40/s: share of the direct pace"),
    ("chunk_cpu", "CPU for a streamed chunk, 64 x 40/s (us)"),
)

Found = dict[str, float]


def router(venv: Path, engine_url: str, folder: Path) -> ServerProcess:
    port = free_port()
    command: list[str | Path] = [
        venv / "bin/python",
        "-m",
        "sglang_router.launch_router",
        "--worker-urls",
        engine_url,
    ]
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    options += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    return _server("sglang-router", [*command, *options, "--log-level", "warn"], port, "/health", folder)


def litellm(venv: Path, engine_url: str, folder: Path) -> ServerProcess:
    port = free_port()
    config = folder / "litellm.yaml"
    upstream = {"model": "openai/bench", "api_base": f"{engine_url}/v1", "api_key": "none"}
    models = [{"model_name": "bench", "litellm_params": upstream}]
    config.write_text(json.dumps({"model_list": models}))
    options = ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    # It asks for a key otherwise, and fetches a list of prices.
    settings = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command: list[str | Path] = [venv / "bin/litellm", *options]
    return _server("litellm", command, port, "/health/liveliness", folder, settings)


def _server(
    name: str,
    command: Sequence[str | Path],
    port: int,
    ready_path: str,
    folder: Path,
    env: Mapping[str, str] = {},
) -> ServerProcess:
    return ServerProcess(
        name,
        command,
        port=port,
        env=env,
        log_path=folder / f"{name}.log",
        ready_path=ready_path,
        ready_seconds=120,
        cwd=folder,
    )


def measure(tools: Tools, server: ServerProcess, seconds: float) -> Found:
    """One round at one server: latencies and delays as they are, not yet what was added."""
    tools.load("requests", server.port, connections=1, seconds=0.2)
    one = tools.load("requests", server.port, connections=1, seconds=seconds)
    cpu = server.cpu_seconds()
    many = tools.load("requests", server.port, connections=32, seconds=seconds)
    request_cpu = server.cpu_seconds() - cpu
    cpu = server.cpu_seconds()
    chunks = max(40, round(1.5 * seconds * 1e6 / INTERVAL_US))
    streams = tools.load("streams", server.port, connections=STREAMS, chunks=chunks, interval_us=INTERVAL_US)
    chunk_cpu = server.cpu_seconds() - cpu
    return {
        "c1_p50": one["latency_us"]["p50"] / 1000,
        "c1_p99": one["latency_us"]["p99"] / 1000,
        "rate": many["requests"] / many["seconds"],
        "request_cpu": 1000 * request_cpu / many["requests"],
        "delay_p50": streams["delay_us"]["p50"] / 1000,
        "delay_p99": streams["delay_us"]["p99"] / 1000,
        "pace": streams["seconds"],
        "chunk_cpu": 1e6 * chunk_cpu / (STREAMS * chunks),
    }


def added(found: Found, direct: Found) -> Found:
    """What a server adds to the engine's own latencies and delays of the same round."""
    differences = {
        name: found[name] - direct[name] for name in ("c1_p50", "c1_p99", "delay_p50", "delay_p99")
    }
    return {**found, **differences, "pace": direct["pace"] / found["pace"]}


def table(figures: dict[str, Found]) -> str:
    """One column a server."""
    lines = [f"{'':45}" + "".join(f"{name:>16}" for name in figures)]
    lines += [
        f"{text:45}" + "".join(f"{found[name]:16,.2f}" for found in figures.values()) for name, text in SHOWN
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises RuntimeError when answers were missing or wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--router", type=Path, metavar="VENV", help="where sglang-router is installed")
    parser.add_argument("--litellm", type=Path, metavar="VENV", help="where litellm[proxy] is installed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load (default 2)")
    parser.add_argument("--out", default=str(REPOSITORY / "out"))
    chosen = parser.parse_args(arguments)
    tools = build(REPOSITORY / ".cache" / "bench")
    folder = (Path(chosen.out) / f"peers-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    folder.mkdir(parents=True)
    port = free_port()
    engine = _server("direct", [*tools.engine, str(port), str(POOL_TOKENS)], port, "/ready", folder)
    servers: list[ServerProcess] = [ProxyServer(engine.base_url, log_path=folder / "proxy.log")]
    if chosen.router:
        servers.append(router(chosen.router, engine.base_url, folder))
    if chosen.litellm:
        servers.append(litellm(chosen.litellm, engine.base_url, folder))
    rounds: dict[str, list[Found]] = {server.name: [] for server in servers}
    with engine, ExitStack() as running:
        for server in servers:
            running.enter_context(server)
        for number in range(chosen.rounds):
            direct = measure(tools, engine, chosen.seconds)
            for server in servers:
                rounds[server.name].append(added(measure(tools, server, chosen.seconds), direct))
            print(f"  round {number + 1} of {chosen.rounds} is done", flush=True)
    figures = {name: medians(found) for name, found in rounds.items()}
    (folder / "peers.json").write_text(
        json.dumps({"machine": machine(), "medians": figures, "rounds": rounds}, indent=1) + "\n"
    )
    print(f"\n{table(figures)}\n\n{machine()}\n{folder / 'peers.json'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
