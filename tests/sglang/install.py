"""Installs a real SGLang for the CPU into a virtual environment of its own, and makes its tiny model.

    python -m tests.sglang.install        # prints the folder; takes minutes once, then nothing

The environment lives in `SGLANG_CACHE_DIR` (default `.cache/sglang` in the repository) under a name
that hashes the pins, so that a changed pin installs anew. A marker written last tells a complete
install from a killed one, which is thrown away and begun again.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
MODEL_MAKER = HERE / "model.py"
TORCH = "torch==2.13.0"
HEARTBEAT_SECONDS = 15.0

Say = Callable[[str], None]


class InstallError(RuntimeError):
    """A step of the install failed; the text names the log to read."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where a complete install lies: the interpreter that can import sglang, and the model's folder."""

    python: Path
    model: Path


def cache_dir() -> Path:
    """The folder that installs are kept in between runs."""
    configured = os.environ.get("SGLANG_CACHE_DIR")
    return Path(configured).resolve() if configured else HERE.parents[1] / ".cache" / "sglang"


def ensure(say: Say | None = None) -> Installation:
    """Returns the install for the current pins, making what is missing.

    Raises InstallError, with the name of the log, when pip or the model maker fails.
    """
    say = say or (lambda line: print(line, flush=True))
    root = cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "lock", say):
        environment = root / f"venv-{_digest(REQUIREMENTS.read_bytes(), TORCH.encode())}"
        if not _complete(environment):
            _install(environment, root / "install.log", say)
            _remove_others(root, "venv-*", environment)
        python = environment / "bin" / "python"
        model = root / f"model-{_digest(MODEL_MAKER.read_bytes(), environment.name.encode())}"
        if not _complete(model):
            _make_model(python, model, root / "install.log", say)
            _remove_others(root, "model-*", model)
    return Installation(python=python, model=model)


def _digest(*parts: bytes) -> str:
    made = hashlib.sha256(platform.python_version().encode())
    for part in parts:
        made.update(b"\0" + part)
    return made.hexdigest()[:12]


def _complete(folder: Path) -> bool:
    return (folder / ".complete").exists()


def _finish(folder: Path) -> None:
    (folder / ".complete").write_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n")


def _remove_others(root: Path, pattern: str, keep: Path) -> None:
    for old in root.glob(pattern):
        if old != keep:
            shutil.rmtree(old)


def _install(environment: Path, log: Path, say: Say) -> None:
    say(f"Installing SGLang for the CPU into {environment}: about 3 GB, some minutes, once")
    started = time.monotonic()
    shutil.rmtree(environment, ignore_errors=True)
    log.write_text("")
    venv.create(environment, with_pip=True)
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "install", "--progress-bar", "off"]
    _step(f"1/2 {TORCH}", [*pip, TORCH], log, say)
    _step("2/2 sglang and what it imports", [*pip, "--no-deps", "-r", REQUIREMENTS], log, say)
    _finish(environment)
    say(f"Installed in {time.monotonic() - started:.0f} s")


def _make_model(python: Path, model: Path, log: Path, say: Say) -> None:
    shutil.rmtree(model, ignore_errors=True)
    _step("tiny random model", [python, MODEL_MAKER, model], log, say)
    _finish(model)


def _step(title: str, command: list[str | Path], log: Path, say: Say) -> None:
    """Runs one command into the log, with a sign of life while it is quiet."""
    say(f"  {title} ...")
    started = time.monotonic()
    done = threading.Event()

    def pulse() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            say(f"  {title}: {time.monotonic() - started:.0f} s")

    threading.Thread(target=pulse, daemon=True).start()
    try:
        with log.open("a") as out:
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    finally:
        done.set()
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise InstallError(f"{title}: exit code {code}; see {log}\n{tail}")


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    """One installer at a time: a second waits, and then finds the work done."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another install is under way in {path.parent}: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    try:
        made = ensure()
    except InstallError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(f"python: {made.python}\nmodel:  {made.model}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
