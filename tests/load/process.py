"""A server process that a test starts: its log, its readiness, its end, and nothing left behind."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_SECONDS = 15.0
PROBE_SECONDS = 0.25
SIGN_OF_LIFE_SECONDS = 10.0
LOG_TAIL_LINES = 25
GROUP_FIELD, USER_FIELD, SYSTEM_FIELD = 2, 11, 12  # of /proc/PID/stat, counted after the name

Say = Callable[[str], None]


def say_at_once(line: str) -> None:
    """Prints a line of progress; whoever waits sees it now."""
    print(line, flush=True)


class ServerFailed(RuntimeError):
    """A server ended, or was not ready in time; the text holds the end of its log."""


def free_port() -> int:
    """A port that was free a moment ago on the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def http_status(url: str, timeout: float = 2.0) -> int | None:
    """The status of a GET, None where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code
    except OSError:
        return None


class ServerProcess:
    """One server on a fixed loopback port, in a process group of its own.

    `ready_path` answers 200 when it can work. `stop` and `kill9` end that group and nothing else.
    Should the thread that called `start` end, the kernel ends the server too (where `setpriv` exists).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        port: int,
        env: Mapping[str, str],
        log_path: Path,
        ready_path: str,
        ready_seconds: float,
        cwd: Path | None = None,
        say: Say | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}"
        self.log_path = log_path
        self._command = [*_dying_with_us(), *map(str, command)]
        self._env = {**os.environ, **env}
        self._ready_url = self.base_url + ready_path
        self._ready_seconds = ready_seconds
        self._cwd = cwd
        self._say = say or say_at_once
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that was started. Raises ServerFailed when it is not running."""
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> Self:
        """Starts it, appending to its log, and waits until it is ready."""
        if self.is_running():
            raise ServerFailed(f"{self.name} runs already")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Raises ServerFailed, after ending it, when it dies or takes longer than it may."""
        started = time.monotonic()
        said = started
        while http_status(self._ready_url) != 200:
            now = time.monotonic()
            if not self.is_running() or now - started > self._ready_seconds:
                reason = "not ready in time" if self.is_running() else "ended at start"
                self.kill9()
                raise ServerFailed(f"{self.name}: {reason}; {self.log_path} ends with\n{self.log_tail()}")
            if now - said > SIGN_OF_LIFE_SECONDS:
                said = now
                self._say(f"  {self.name} is starting: {now - started:.0f} s")
            time.sleep(PROBE_SECONDS)
        self._say(f"  {self.name} is ready on {self.base_url} after {time.monotonic() - started:.1f} s")

    def stop(self) -> None:
        """Asks it to end, waits, then ends what is left of its group."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._say(f"  {self.name} did not end within {STOP_SECONDS:.0f} s of SIGTERM: killed")
        self.kill9()

    def kill9(self) -> None:
        """What a crash looks like from outside: the whole group is gone at once."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # the group has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stops it if it runs, and starts it again on the same port."""
        self.stop()
        self.start()

    def cpu_seconds(self) -> float:
        """User and system time of all processes of its group."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # ended while we looked
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[GROUP_FIELD]) == self.pid:
                    ticks += int(fields[USER_FIELD]) + int(fields[SYSTEM_FIELD])
        return ticks / os.sysconf("SC_CLK_TCK")

    def log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _dying_with_us() -> list[str]:
    wrapper = shutil.which("setpriv")
    return [wrapper, "--pdeathsig", "KILL", "--"] if wrapper else []
