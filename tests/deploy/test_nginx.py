"""The nginx example, taken by nginx, and streaming through it as it comes."""

import asyncio
import contextlib
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from proxy.serve import KEEPALIVE_SECONDS, make_server
from proxy.settings import Settings
from tests.deploy.files import DEPLOY

TEXT = (DEPLOY / "nginx" / "sglang-admission-proxy.conf").read_text()
GAP_SECONDS = 0.3


def seconds(directive: str) -> int:
    """What the example says for `directive`."""
    found = re.search(rf"^\s+{directive} (\d+)s;", TEXT, re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def configuration(folder: Path, text: str) -> Path:
    """A whole nginx.conf around the example, that writes into `folder` only."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in kinds)
    path = folder / "nginx.conf"
    path.write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{text}\n}}\n"
    )
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_nginx_takes_the_example(nginx: str, tmp_path: Path) -> None:
    command = [nginx, "-t", "-e", "stderr", "-c", str(configuration(tmp_path, TEXT))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_idle_connections_end_at_nginx_before_they_end_at_the_proxy() -> None:
    assert seconds("keepalive_timeout") < KEEPALIVE_SECONDS


def test_nginx_waits_at_least_as_long_as_the_proxy_may() -> None:
    settings = Settings()
    assert seconds("proxy_read_timeout") >= settings.max_queue_seconds_limit + settings.stall_seconds


def test_bodies_that_the_proxy_takes_pass_nginx() -> None:
    found = re.search(r"client_max_body_size (\d+)m;", TEXT)
    assert found is not None
    assert int(found.group(1)) * 2**20 > Settings().max_body_bytes


class Ticker:
    """Sends one event, pauses, sends another; knows when its client has left."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        if scope["path"] == "/endless":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        await asyncio.sleep(GAP_SECONDS)
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})


@contextlib.asynccontextmanager
async def behind_nginx(nginx: str, folder: Path, app: Ticker) -> AsyncIterator[httpx.AsyncClient]:
    """`app` as the proxy would be served, behind nginx with the example on free ports."""
    inner, outer = free_port(), free_port()
    server = make_server(app, "127.0.0.1", inner)
    serving = asyncio.create_task(server.serve())
    text = TEXT.replace("127.0.0.1:8080", f"127.0.0.1:{inner}").replace(
        "listen 8000", f"listen 127.0.0.1:{outer}"
    )
    process = subprocess.Popen([nginx, "-e", "stderr", "-c", str(configuration(folder, text))])
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", outer), 0.1):
                break
            await asyncio.sleep(0.05)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{outer}", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)
        server.should_exit = True
        await serving


async def test_events_come_through_one_by_one(nginx: str, tmp_path: Path) -> None:
    async with (
        behind_nginx(nginx, tmp_path, Ticker()) as client,
        client.stream("GET", "/v1/models") as answer,
    ):
        times = [time.monotonic() async for _ in answer.aiter_raw()]
    assert len(times) == 2
    assert times[1] - times[0] > GAP_SECONDS / 2


async def test_a_client_that_leaves_is_noticed_behind_nginx(nginx: str, tmp_path: Path) -> None:
    app = Ticker()
    async with behind_nginx(nginx, tmp_path, app) as client:
        async with client.stream("GET", "/endless") as answer:
            await anext(answer.aiter_raw())
        await asyncio.wait_for(app.left.wait(), 2)


@pytest.mark.parametrize("path", ["/metrics", "/admission/status"])
async def test_operators_paths_do_not_pass_nginx(path: str, nginx: str, tmp_path: Path) -> None:
    async with behind_nginx(nginx, tmp_path, Ticker()) as client:
        assert (await client.get(path)).status_code == 404
