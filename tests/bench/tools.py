"""The engine and the load client: compiled where a compiler is found, else slower stand-ins in Python."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.load.process import Say, ServerProcess, free_port
from tests.load.proxy import REPOSITORY

HERE = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O2", "-std=c++17", "-Wall", "-Wextra")
PATIENCE_SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Tools:
    """How to start them: `engine PORT [POOL]`, `client KIND PORT name=value ...` (see the sources)."""

    engine: Sequence[str]
    client: Sequence[str]
    compiled: bool

    def start_client(self, kind: str, port: int, **options: float) -> subprocess.Popen[bytes]:
        """A load that runs; `result` waits for it."""
        settings = [f"{name}={value}" for name, value in options.items()]
        return subprocess.Popen([*self.client, kind, str(port), *settings], stdout=subprocess.PIPE)

    def load(self, kind: str, port: int, **options: float) -> dict[str, Any]:
        """Runs one load to its end. Raises RuntimeError when an answer was missing or wrong."""
        return result(self.start_client(kind, port, **options))


def engine_server(
    command: Sequence[str | Path], log_path: Path, *, pool_tokens: int | None = None, say: Say | None = None
) -> ServerProcess:
    """A stand-in for SGLang on a free port, not started: `Tools.engine`, or another with its arguments."""
    port = free_port()
    return ServerProcess(
        log_path.stem,
        [*command, str(port), *([] if pool_tokens is None else [str(pool_tokens)])],
        port=port,
        env={},
        log_path=log_path,
        ready_path="/ready",
        ready_seconds=10,
        cwd=REPOSITORY,
        say=say,
    )


def result(client: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a load measured. Raises RuntimeError when an answer was missing or wrong."""
    output, _ = client.communicate(timeout=PATIENCE_SECONDS)
    if client.returncode != 0:
        raise RuntimeError(f"the load client ended with {client.returncode}")
    found: dict[str, Any] = json.loads(output)
    if found["errors"] or set(found["statuses"]) != {"200"}:
        raise RuntimeError(f"answers were missing or wrong: {found}")
    return found


def build(folder: Path) -> Tools:
    """Compiles into `folder` what is not there yet."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        return Tools(_python("stand_in_engine"), _python("stand_in_client"), compiled=False)
    return Tools(
        [_compiled(compiler, "engine", folder)], [_compiled(compiler, "client", folder)], compiled=True
    )


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.bench.{module}"]


def _compiled(compiler: str, name: str, folder: Path) -> str:
    source = HERE / f"{name}.cc"
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    binary = folder / f"{name}-{version}"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, *FLAGS, "-o", binary, source], check=True)
    return str(binary)
