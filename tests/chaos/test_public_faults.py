"""Faults that users of other gateways report, reproduced small. docs/faults.md lists them all."""

import asyncio
import re
from pathlib import Path

from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.e2e.refusing import check_refusal
from tests.fakes import FakeServer
from tests.load.proxy import REPOSITORY
from tests.proxies import proxy_before
from tests.raw_http import Connection, chat, request
from tests.waiting import eventually

PAGE = REPOSITORY / "docs" / "faults.md"
HALF_POOL = 90_000  # of the fake server's


async def test_eight_giants_at_once_never_overfill_the_server(fake: FakeServer) -> None:
    held = fake.answer = Held(fake)
    async with proxy_before(fake, max_queue_seconds=600.0) as proxy:
        giants = [asyncio.create_task(proxy.ask(ids(HALF_POOL, stream=True), COMPLETIONS)) for _ in range(8)]
        pool = proxy.app.gate.controller.lines["b0"].pool
        for _ in range(20):
            await asyncio.sleep(0.02)
            assert held.running <= 2
            assert pool.committed_tokens <= fake.pool_tokens
        held.go.set()
        assert all(reply.whole for reply in await asyncio.gather(*giants))
        await proxy.settled()


async def test_a_long_prompt_takes_the_room_of_its_tokens_and_a_short_one_that_of_its_own(
    fake: FakeServer,
) -> None:
    held = fake.answer = Held(fake)
    async with proxy_before(fake) as proxy:
        long = asyncio.create_task(proxy.ask(ids(100_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        pool = proxy.app.gate.controller.lines["b0"].pool
        await eventually(lambda: pool.backlog_tokens == 0)
        shorts = [asyncio.create_task(proxy.ask(ids(500, stream=True), COMPLETIONS)) for _ in range(30)]
        await eventually(lambda: held.running == 31)  # all of them beside it
        assert pool.committed_tokens >= 100_000 + 30 * 500
        held.go.set()
        assert all(reply.whole for reply in await asyncio.gather(long, *shorts))
        await proxy.settled()


async def test_a_place_is_given_back_with_the_last_byte_and_not_with_the_head(fake: FakeServer) -> None:
    held = fake.answer = Held(fake)
    async with proxy_before(fake) as proxy, await Connection.open(proxy.port) as connection:
        await connection.send(request(chat(stream=True)))
        assert (await connection.head()).status == 200
        await connection.chunk()
        await asyncio.sleep(0.2)
        ledger = proxy.ledger()
        assert ledger["tickets"] == 1
        assert ledger["b0 S"] == 1
        assert ledger["b0 C"] > 0
        held.go.set()
        while await connection.chunk():
            pass
        await proxy.settled()


async def test_so_many_tokens_may_wait_and_no_more(fake: FakeServer) -> None:
    fake.pool_tokens = 20_000
    held = fake.answer = Held(fake)
    async with proxy_before(fake, max_queue_tokens=25_000, max_queue_seconds=600.0) as proxy:
        first = asyncio.create_task(proxy.ask(ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        second = asyncio.create_task(proxy.ask(ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        check_refusal(await proxy.ask(ids(15_000), COMPLETIONS), 429, "queue_full")
        held.go.set()
        assert (await first).whole
        assert (await second).whole
        await proxy.settled()


def _tests_of(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


def test_every_fault_on_the_page_is_held_by_a_test_that_exists() -> None:
    tables = PAGE.read_text().partition("## The server")[2].splitlines()
    heads = ("| what happens", "| reported of", "| ---")
    rows = [line for line in tables if line.startswith("|") and not line.startswith(heads)]
    assert len(rows) > 40
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`: (`\w+`(?:, `\w+`)*)", row)
        assert named, f"no test: {row}"
        for file, names in named:
            missing = set(re.findall(r"\w+", names)) - _tests_of(REPOSITORY / file)
            assert not missing, f"{file} has no {missing}"
