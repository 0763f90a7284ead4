"""What the proxy costs: direct and proxied in turns against a fast engine, medians over the rounds.

    python -m tests.bench.overhead                       # five rounds, about six minutes
    python -m tests.bench.overhead --rounds 1 --seconds 1
    python -m tests.bench.overhead --env PROXY_LOG_LEVEL=warning --only c1 s64

Exit code 0 when every required figure holds, else 1. All that was measured is kept as JSON under out/.
Ratios say more than figures: machines differ, and others may work on this one.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.memory import start_seconds, waiting_memory
from tests.bench.meters import cpu_seconds, machine
from tests.bench.targets import TARGETS, medians, table
from tests.bench.tools import Tools, build, engine_server, result
from tests.load.process import ServerProcess
from tests.load.proxy import REPOSITORY, ProxyServer

POOL_TOKENS = 20_000_000  # admission decides, and never says no: what waits would not be overhead
INTERVAL_US = 25_000
GIANT_BYTES = 720_000  # 180K tokens of the client's words
GIANTS = 40
FLAT_CHUNKS = 2000

Found = dict[str, Any]


class Bench:
    """One engine, one proxy before it, and loads that go to either."""

    def __init__(self, tools: Tools, engine: ServerProcess, proxy: ProxyServer, seconds: float) -> None:
        self.seconds = seconds
        self.requests = 0  # that went through the proxy
        self._tools = tools
        self._engine = engine
        self._proxy = proxy
        self._direct_first = False
        self._seed = 0

    def next_round(self) -> None:
        """Who goes first takes turns."""
        self._direct_first = not self._direct_first

    def both(self, kind: str, **options: float) -> tuple[Found, Found]:
        """The same load directly and through the proxy. The latter with its CPU seconds."""
        if self._direct_first:
            direct = self._tools.load(kind, self._engine.port, **options)
            return direct, self._proxied(kind, options)
        proxied = self._proxied(kind, options)
        return self._tools.load(kind, self._engine.port, **options), proxied

    def _proxied(self, kind: str, options: Mapping[str, float]) -> Found:
        before = cpu_seconds(self._proxy.pid)
        found = self._tools.load(kind, self._proxy.port, **options)
        found["cpu_seconds"] = cpu_seconds(self._proxy.pid) - before
        self.requests += found["requests"]
        return found

    def _fresh_seed(self) -> int:
        """Of texts that were never counted before."""
        self._seed += 1000
        return self._seed

    def gap_ms(self, giants: int, *, direct: bool = False) -> float:
        """The p99.9 gap between chunks of 64 streams, while `giants` requests of 180K tokens come at once."""
        port = self._engine.port if direct else self._proxy.port
        chunks = max(40.0, self.seconds * 80)
        streams = self._tools.start_client(
            "streams", port, connections=64, chunks=chunks, interval_us=INTERVAL_US
        )
        time.sleep(0.5)
        others = 0
        if giants:
            wanted = {
                "connections": giants,
                "seconds": 0.001,
                "bytes": GIANT_BYTES,
                "seed": self._fresh_seed(),
            }
            others = self._tools.load("requests", port, **wanted)["requests"]
        found = result(streams)
        self.requests += 0 if direct else found["requests"] + others
        return float(found["gap_us"]["p999"]) / 1000


def one_connection(bench: Bench) -> dict[str, float]:
    return _added("c1", *bench.both("requests", connections=1, seconds=bench.seconds))


def steady(bench: Bench) -> dict[str, float]:
    return _added("r100", *bench.both("requests", connections=16, rate=100, seconds=bench.seconds))


def throughput(bench: Bench) -> dict[str, float]:
    _, c32 = bench.both("requests", connections=32, seconds=bench.seconds)
    _, c128 = bench.both("requests", connections=128, seconds=bench.seconds)
    return {
        "c32_rate": c32["requests"] / c32["seconds"],
        "c128_rate": c128["requests"] / c128["seconds"],
        "request_cpu": 1000 * c32["cpu_seconds"] / c32["requests"],
    }


def paced_streams(bench: Bench) -> dict[str, float]:
    """CPU for a chunk includes the stream's share of its request's."""
    chunks = _stream_chunks(bench)
    direct, proxied = bench.both("streams", connections=64, chunks=chunks, interval_us=INTERVAL_US)
    return {**_added("s64", direct, proxied, "delay_us"), "s64_cpu": _chunk_cpu_us(proxied)}


def many_streams(bench: Bench) -> dict[str, float]:
    chunks = _stream_chunks(bench)
    direct, proxied = bench.both("streams", connections=256, chunks=chunks, interval_us=INTERVAL_US)
    added = _added("s256", direct, proxied, "delay_us")
    # from the first chunk of a stream to its last
    pace = direct["gap_us"]["p50"] / proxied["gap_us"]["p50"]
    return {"s256_p50": added["s256_p50"], "s256_pace": pace, "s256_cpu": _chunk_cpu_us(proxied)}


def flat_out(bench: Bench) -> dict[str, float]:
    _, proxied = bench.both("streams", connections=16, chunks=FLAT_CHUNKS, interval_us=0)
    return {"flat_rate": proxied["chunks"] / proxied["seconds"]}


def bodies(bench: Bench) -> dict[str, float]:
    figures = {}
    for name, size in (("b256", 262_144), ("b800", 800_000)):
        direct, proxied = bench.both("requests", connections=1, bytes=size, seconds=bench.seconds)
        figures[f"{name}_p50"] = _added(name, direct, proxied)[f"{name}_p50"]
        figures[f"{name}_cpu"] = 1000 * proxied["cpu_seconds"] / proxied["requests"]
    return figures


def giants(bench: Bench) -> dict[str, float]:
    """How much longer the worst gaps of running streams get while giants are read, counted and sent."""
    undisturbed = bench.gap_ms(0)
    one, many = bench.gap_ms(1), bench.gap_ms(GIANTS)
    figures = {"gap": undisturbed, "gap_giants": many, "gap_giants_direct": bench.gap_ms(GIANTS, direct=True)}
    return {**figures, "giant_gap": one - undisturbed, "giants_gap": many - undisturbed}


def _stream_chunks(bench: Bench) -> int:
    """Half as long again as other loads: of short streams their requests would be the larger part."""
    return max(40, round(1.5 * bench.seconds * 1e6 / INTERVAL_US))


PARTS: Mapping[str, Callable[[Bench], dict[str, float]]] = {
    "c1": one_connection,
    "r100": steady,
    "throughput": throughput,
    "s64": paced_streams,
    "s256": many_streams,
    "flat": flat_out,
    "bodies": bodies,
    "giants": giants,
}


def _added(name: str, direct: Found, proxied: Found, of: str = "latency_us") -> dict[str, float]:
    return {f"{name}_{share}": (proxied[of][share] - direct[of][share]) / 1000 for share in ("p50", "p99")}


def _chunk_cpu_us(proxied: Found) -> float:
    return float(1e6 * proxied["cpu_seconds"] / proxied["chunks"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises RuntimeError when answers were wrong or tokens were not given back."""
    chosen = _parser().parse_args(arguments)
    tools = build(REPOSITORY / ".cache" / "bench")
    if not tools.compiled:
        print(
            "no C++ compiler: engine and client are stand-ins in Python, and part of what is measured",
            flush=True,
        )
    folder = Path(chosen.out) / f"overhead-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    engine = engine_server(tools.engine, folder / "engine.log", pool_tokens=POOL_TOKENS)
    settings = dict(setting.split("=", 1) for setting in chosen.env)
    proxy = ProxyServer(engine.base_url, settings, log_path=folder / "proxy.log", cwd=chosen.proxy_from)
    rounds: list[dict[str, float]] = []
    with engine:
        with proxy:
            bench = Bench(tools, engine, proxy, chosen.seconds)
            for number in range(chosen.rounds):
                rounds.append(_round(bench, chosen.only))
                print(f"  round {number + 1} of {chosen.rounds} is done", flush=True)
            _check_admission(proxy, bench.requests)
        if "rest" in chosen.only:
            for found in rounds:
                found["start"] = start_seconds(engine.base_url, folder / "starts.log")
                found.update(waiting_memory(tools, folder))
    figures = medians(rounds)
    kept = {"machine": machine(), "python": platform.python_version(), "compiled": tools.compiled}
    kept |= {"arguments": vars(chosen), "medians": figures, "rounds": rounds}
    (folder / "overhead.json").write_text(json.dumps(kept, indent=1, default=str) + "\n")
    print(f"\n{table(figures, rounds)}\n\n{kept['machine']}\n{folder / 'overhead.json'}", flush=True)
    return 0 if all(target.holds(figures[target.name]) for target in TARGETS if target.name in figures) else 1


def _round(bench: Bench, only: Sequence[str]) -> dict[str, float]:
    bench.next_round()
    figures: dict[str, float] = {}
    for name, part in PARTS.items():
        if name in only:
            figures |= part(bench)
    return figures


def _check_admission(proxy: ProxyServer, requests: int) -> None:
    """Every request was decided on, and every token came back."""
    ledger = proxy.settled_ledger(10)
    completed = proxy.metrics().get("sglang_proxy_requests_total", 0.0)
    if any(ledger.values()) or completed != requests:
        raise RuntimeError(
            f"{completed:.0f} of {requests} requests were admitted and completed; left over: {ledger}"
        )
    print(
        f"  admission was on: all {requests} requests were charged and released, the ledger is zero",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.overhead", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load (default 2)")
    parser.add_argument(
        "--only", nargs="+", default=[*PARTS, "rest"], choices=[*PARTS, "rest"], metavar="PART"
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the proxy"
    )
    parser.add_argument(
        "--proxy-from",
        type=Path,
        default=REPOSITORY,
        help="another checkout, whose proxy is measured (with --only, since `rest` starts this one's)",
    )
    parser.add_argument("--out", default=str(REPOSITORY / "out"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
