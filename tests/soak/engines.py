"""The server under a soak: a real SGLang on this CPU, or the simulated one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.load.process import Say, ServerProcess, free_port
from tests.load.proxy import REPOSITORY
from tests.load.workload import Vocabulary
from tests.sglang.server import MODEL_NAME, SGLangServer

PACE = "h200-8b"
WORDS = ("sun", "sea", "ice", "oak", "sky", "fox", "owl", "bee")  # of one token each


class SimulatedServer(ServerProcess):
    """`python -m proxy simulator`, with what the load asks of a real one."""

    vocabulary = Vocabulary(WORDS, chat_overhead_tokens=10)
    model = "simulated"

    def __init__(
        self, *, pool: int, speedup: float, log_path: Path, say: Say, options: Sequence[str] = ()
    ) -> None:
        """`options` are the simulator's own, besides."""
        self.pool = pool
        port = free_port()
        command = (
            *(sys.executable, "-m", "proxy", "simulator", "--port", str(port)),
            *("--pool-tokens", str(pool), "--pace", PACE, "--speedup", str(speedup)),
            *options,
        )
        super().__init__(
            "simulator",
            command,
            port=port,
            env={},
            log_path=log_path,
            ready_path="/ready",
            ready_seconds=30.0,
            cwd=REPOSITORY,
            say=say,
        )


class RealServer(SGLangServer):
    """A real SGLang, paced."""

    model = MODEL_NAME

    def __init__(self, *, pool: int, speedup: float, log_path: Path, say: Say) -> None:
        super().__init__(pool=pool, pace=PACE, speedup=speedup, log_path=log_path, say=say)


Engine = SimulatedServer | RealServer


def options(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The command line of a run that `engine` serves."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated", action="store_true", help="the built-in simulator instead of SGLang")
    parser.add_argument("--speedup", type=float, default=4.0, help="divides the server's paced times")
    parser.add_argument("--out", default=str(REPOSITORY / "out"), help="folder for logs")
    return parser


def engine(*, simulated: bool, pool: int, speedup: float, folder: Path, say: Say) -> Engine:
    """Not started."""
    kind = SimulatedServer if simulated else RealServer
    return kind(pool=pool, speedup=speedup, log_path=folder / "engine.log", say=say)
