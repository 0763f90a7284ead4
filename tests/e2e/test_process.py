"""`python -m proxy serve` as a process: starting, signals, leaving in good order, and its log."""

import asyncio
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest

from proxy.serve import give_large_blocks_back
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import DONE, FakeServer
from tests.raw_http import Connection, ask, chat, request
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:(\d+))")


class Child:
    """The running command. Its log is read all the time, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, **environ: str) -> Self:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PROXY_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "proxy",
            "serve",
            cwd=ROOT,
            env={**inherited, "PROXY_PORT": "0", "PROXY_POLL_SECONDS": "0.05", **environ},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def ports(self) -> list[int]:
        return [int(port) for _, port in LISTENING.findall(self.log)]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, seconds: float = 10.0) -> int:
        """Its exit status."""
        async with asyncio.timeout(seconds):
            await self.process.wait()
            await self._reading
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def serving(fake: FakeServer, *, listeners: int = 1, **environ: str) -> AsyncIterator[Child]:
    """A proxy before `fake` that is ready; killed if the test does not end it."""
    child = await Child.start(PROXY_BACKENDS=fake.url, **environ)
    try:
        await eventually(lambda: len(child.ports) == listeners or child.process.returncode is not None, 20)
        assert child.process.returncode is None, child.log
        async with asyncio.timeout(10):
            while (await ask(child.ports[0], None, "/ready", method="GET")).status != 200:
                await asyncio.sleep(0.05)
        yield child
    finally:
        if child.process.returncode is None:
            child.process.kill()
        await child.ended()


async def test_sigterm_refuses_the_queued_and_the_new_and_ends_what_streams(fake: FakeServer) -> None:
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with serving(fake) as child:
        (port,) = child.ports
        streaming = asyncio.create_task(ask(port, ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        queued = asyncio.create_task(ask(port, ids(15_000), COMPLETIONS))
        await asyncio.sleep(0.2)
        async with await Connection.open(port) as kept:
            child.signal(signal.SIGTERM)
            started = time.monotonic()
            refused = await queued
            assert time.monotonic() - started < 1.0
            assert (refused.status, refused.header("x-admission-reason")) == (503, "draining")
            await kept.send(request(chat()))
            late = await kept.reply()
            assert (late.status, late.header("x-admission-reason")) == (503, "draining")
            assert late.header("retry-after")
            assert (await ask(port, None, "/ready", method="GET")).status == 503
            assert (await ask(port, None, "/livez", method="GET")).status == 200
        held.go.set()
        reply = await streaming
        assert (reply.whole, reply.body[-len(DONE) :]) == (True, DONE)
        assert await child.ended(3.0) == 0
        assert "Traceback" not in child.log
        assert fake.aborts() == []


async def test_what_runs_longer_than_the_drain_is_aborted_and_its_client_told(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with serving(fake, PROXY_DRAIN_SECONDS="0.3") as child:
        (port,) = child.ports
        asked = [asyncio.create_task(ask(port, chat(stream=stream))) for stream in (True, True, False)]
        await eventually(lambda: held.running == 3)
        await asyncio.sleep(0.1)
        child.signal(signal.SIGTERM)
        started = time.monotonic()
        *streams, whole = await asyncio.gather(*asked)
        for reply in streams:
            assert reply.whole
            assert b'"code":"upstream_broken"' in reply.body
        assert whole.status == 502 or not whole.whole
        assert await child.ended(5.0) == 0
        assert time.monotonic() - started < 4.0
        assert sorted(fake.aborts()) == sorted(received.rid for received in fake.posts())
        assert "3 requests are cut off" in child.log
        assert "Traceback" not in child.log


async def test_a_second_sigint_leaves_at_once_and_still_aborts(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with serving(fake) as child:
        streaming = asyncio.create_task(ask(child.ports[0], chat(stream=True)))
        await eventually(lambda: held.running == 1)
        child.signal(signal.SIGINT)
        await asyncio.sleep(0.3)
        assert child.process.returncode is None
        child.signal(signal.SIGINT)
        assert await child.ended(3.0) == 0
        reply = await streaming
        assert not reply.whole or b"upstream_broken" in reply.body
        assert len(fake.aborts()) == 1
        assert "Traceback" not in child.log


async def test_an_idle_proxy_leaves_at_once_and_a_slow_reader_does_not_hold_it(fake: FakeServer) -> None:
    fake.answer = Held(fake, text=b": " + b"x" * 60_000 + b"\n\n")
    async with serving(fake, PROXY_DRAIN_SECONDS="0.3") as child:
        slow = await Connection.open(child.ports[0], receive_buffer_bytes=16_384)
        await slow.send(request(chat(stream=True)))
        await slow.head()
        idle = await Connection.open(child.ports[0])
        begun = await Connection.open(child.ports[0])
        await begun.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n{")
        await asyncio.sleep(0.3)
        child.signal(signal.SIGTERM)
        assert await child.ended(6.0) == 0
        for connection in (slow, idle, begun):
            connection.leave()
        assert "Traceback" not in child.log


async def test_the_log_has_one_clean_line_for_each_request_and_never_a_prompt(fake: FakeServer) -> None:
    async with serving(fake, PROXY_LOG_FORMAT="json", PROXY_TENANT_HEADER="x-tenant") as child:
        (port,) = child.ports
        forged = [("x-tenant", 'evil"}\t{"a'), ("x-request-id", "\u00ff")]
        await ask(port, chat("my-secret-prompt", model='m\n{"forged": 1}\x1b[2J\u2028'), headers=forged)
        await ask(port, b"nonsense", headers=[("x-request-id", "second")])
        await ask(port, None, "/livez", method="GET")
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
    entries = [json.loads(line) for line in child.lines]
    first, second = (entry for entry in entries if entry["message"] == "request")
    assert (first["outcome"], first["status"], first["lane"]) == ("completed", 200, "short")
    assert first["model"].startswith("m\n")
    assert first["completion_tokens"] == 8
    assert (second["request_id"], second["outcome"], second["status"]) == ("second", "invalid", 400)
    assert "my-secret-prompt" not in child.log
    assert "\x1b" not in child.log


async def test_operators_have_a_port_of_their_own_where_one_is_set(fake: FakeServer) -> None:
    async with serving(fake, listeners=2, PROXY_ADMIN_PORT="0", PROXY_ADMIN_KEY="s3cret") as child:
        clients, operators = child.ports
        assert (await ask(clients, None, "/metrics", method="GET")).status == 404
        assert (await ask(operators, None, "/metrics", method="GET")).status == 200
        assert (await ask(operators, None, "/admission/status", method="GET")).status == 401
        key = [("x-admin-key", "s3cret")]
        assert (await ask(operators, None, "/admission/status", method="GET", headers=key)).status == 200
        assert (await ask(clients, chat())).status == 200
        child.signal(signal.SIGTERM)
        assert await child.ended(3.0) == 0
        assert "s3cret" not in child.log


@pytest.mark.parametrize("variable", ["PROXY_PORT", "PROXY_ADMIN_PORT"])
async def test_a_port_that_is_taken_ends_the_start_with_a_clear_line(fake: FakeServer, variable: str) -> None:
    child = await Child.start(PROXY_BACKENDS=fake.url, **{variable: str(fake.port)})
    assert await child.ended(20.0) == 1
    assert "address already in use" in child.log
    assert f":{fake.port}: choose another {variable.replace('PORT', 'HOST')} or {variable}" in child.log
    assert "Traceback" not in child.log


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PROXY_MODE", "sometimes", "enforce"),
        ("PROXY_PORT", "99999", "65535"),
        ("PROXY_BACKENDS", "ftp://x", "http"),
    ],
)
async def test_a_wrong_value_ends_the_start_with_one_line(variable: str, value: str, said: str) -> None:
    child = await Child.start(**{variable: value})
    assert await child.ended(20.0) == 2
    (line,) = child.lines
    assert variable in line
    assert value in line
    assert said in line


async def test_an_unknown_variable_is_pointed_out(fake: FakeServer) -> None:
    async with serving(fake, PROXY_MAX_QUEUE_SECOND="5") as child:
        assert "PROXY_MAX_QUEUE_SECOND" in child.log
        assert "PROXY_MAX_QUEUE_SECONDS" in child.log


def test_freed_bodies_go_back_to_the_system_where_the_c_library_can() -> None:
    assert give_large_blocks_back() is (platform.libc_ver()[0] == "glibc")
