"""Servers started for a demonstration, and ended with it, each by its own process."""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import httpx

START_SECONDS = 30.0
STOP_SECONDS = 5.0
POLL_SECONDS = 0.1
LAST_LINES = 15


class StartFailed(Exception):
    """A server did not come up; the message ends with its last words."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def running(
    name: str, arguments: Sequence[str], ready_url: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[int]:
    """Runs `python arguments...` until `ready_url` answered 200; gives its process id. Raises StartFailed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdout=output,
                stderr=output,
                env={**_inherited(), **(environment or {})},
                start_new_session=True,  # Ctrl-C is ours to handle: it must not reach them first
            )
        try:
            await _ready(name, process, ready_url, log)
            yield process.pid
        finally:
            await _stop(process)


def _inherited() -> dict[str, str]:
    """What is set for somebody else's proxy is not for these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}


async def _ready(name: str, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    async with httpx.AsyncClient(trust_env=False) as http:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await http.get(url, timeout=2)).status_code == httpx.codes.OK:
                    return
            if process.returncode is not None or loop.time() > deadline:
                raise StartFailed(f"{name} did not come up ({url})\n{_last_words(log)}")
            await asyncio.sleep(POLL_SECONDS)


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
