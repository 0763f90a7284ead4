"""The machine fails: its clock jumps, its disk is full, its descriptors run out."""

import asyncio
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.serve import OWN_DESCRIPTORS
from tests.chaos import faults
from tests.chaos.crowd import crowd, pass_by, statuses
from tests.chaos.rest import check_at_rest
from tests.fakes import FakeServer
from tests.load.proxy import REPOSITORY
from tests.proxies import proxy_before
from tests.raw_http import Connection, ask, chat, request
from tests.waiting import eventually

FULL_DISK = Path("/dev/full")
HOUR = 3600.0
DESCRIPTORS = 150
MOST_CLIENTS = (DESCRIPTORS - OWN_DESCRIPTORS) // 3
LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@pytest.mark.parametrize("jump_seconds", [HOUR, -HOUR])
async def test_when_the_clock_jumps_under_load_nobody_is_lost(fake: FakeServer, jump_seconds: float) -> None:
    fake.answer = faults.drip
    fake.pool_tokens = 20_000
    async with proxy_before(fake) as proxy:
        clients = asyncio.create_task(crowd(proxy, 30, over_seconds=0.4))
        await asyncio.sleep(0.2)
        proxy.app.gate.clock = lambda: time.monotonic() + jump_seconds
        found = set(statuses(await clients))
        assert 200 in found
        assert found <= {200, 429}  # it seems that they have waited for an hour, or would have to
        await check_at_rest(proxy)


async def test_a_server_whose_wall_clock_is_an_hour_off_serves_as_any_other(fake: FakeServer) -> None:
    fake.answer = faults.healthy
    async with proxy_before(fake) as proxy:
        for skew in (HOUR, -HOUR):
            fake.clock_skew_seconds = skew
            assert set(statuses(await crowd(proxy, 10))) == {200}
        await check_at_rest(proxy)


async def test_a_full_disk_costs_lines_of_the_decision_log_and_nothing_else(fake: FakeServer) -> None:
    fake.answer = faults.healthy
    async with proxy_before(fake, decision_log=FULL_DISK) as proxy:
        dice = random.Random(1)
        leaving = [asyncio.create_task(pass_by(proxy, number, dice, 0.1)) for number in range(20)]
        assert set(statuses(await crowd(proxy, 20))) == {200}
        await asyncio.gather(*leaving)
        await eventually(lambda: proxy.metric("decision_log_dropped_lines_total") >= 40)
        await check_at_rest(proxy)


# --- descriptors ----------------------------------------------------------------------------------


@asynccontextmanager
async def with_few_descriptors(fake: FakeServer, log: Path) -> AsyncIterator[tuple[int, int]]:
    """The port and process id of a proxy that may have so many open, and no more."""
    command = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -m proxy serve"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", command),
            cwd=REPOSITORY,
            env={"PROXY_BACKENDS": fake.url, "PROXY_PORT": "0", "PROXY_POLL_SECONDS": "0.05"},
            stdout=output,
            stderr=output,
        )
    try:
        async with asyncio.timeout(20):
            while not (found := LISTENING.search(log.read_text())):
                await asyncio.sleep(0.05)
            port = int(found[1])
            while (await ask(port, None, "/ready", method="GET")).status != 200:
                await asyncio.sleep(0.05)
        yield port, process.pid
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def ask_on(connection: Connection) -> int:
    """The status of the answer, 0 where the connection was closed without one."""
    try:
        await connection.send(request(chat(stream=True)))
        async with asyncio.timeout(10):
            return (await connection.reply()).status
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0


async def test_one_client_too_many_is_told_so_and_a_flood_harms_nobody_inside(
    fake: FakeServer, tmp_path: Path
) -> None:
    fake.answer = faults.drip
    log = tmp_path / "log"
    async with with_few_descriptors(fake, log) as (port, pid):
        at_rest = descriptors_of(pid)
        inside = [await Connection.open(port) for _ in range(MOST_CLIENTS - 1)]
        assert await asyncio.gather(*map(ask_on, inside)) == [200] * len(inside)
        outside = [await Connection.open(port) for _ in range(5)]
        assert await asyncio.gather(*map(ask_on, outside)) == [503] * 5
        begun = [asyncio.create_task(ask_on(connection)) for connection in inside]
        flood = await asyncio.gather(*(Connection.open(port) for _ in range(3 * DESCRIPTORS)))
        assert set(await asyncio.gather(*map(ask_on, flood))) <= {0, 503}
        assert await asyncio.gather(*begun) == [200] * len(inside)
        for connection in (*inside, *outside, *flood):
            connection.leave()
        await eventually(lambda: descriptors_of(pid) <= at_rest + MOST_CLIENTS)  # idle ones to the server
        assert (await ask(port, chat())).status == 200
        metrics = (await ask(port, None, "/metrics", method="GET")).body.decode()
        assert re.search(r"^sglang_proxy_backend_up\{.*\} 1\.0$", metrics, re.MULTILINE)
        assert not re.findall(r"^sglang_proxy_committed_tokens\{.*\} [^0].*$", metrics, re.MULTILINE)
    assert "Traceback" not in log.read_text()
    assert " is down" not in log.read_text()
