"""A server that fails each request in its own way: every client hears of it, and nothing is left."""

import asyncio
import random

import pytest

from proxy.upstream import abort, patience
from tests.chaos.crowd import crowd, pass_by
from tests.chaos.faults import FAULTS, as_named
from tests.chaos.rest import check_at_rest
from tests.fakes import FakeServer
from tests.proxies import proxy_before

NAMES = tuple(FAULTS)
GROUPS = {
    "resets": [name for name in NAMES if name.startswith("reset")],
    "closed connections": [name for name in NAMES if name.startswith(("closed", "half"))],
    "silence": [name for name in NAMES if name.startswith(("silence", "a slow"))],
}
GROUPS["wrong answers"] = [name for name in NAMES if not any(name in group for group in GROUPS.values())]
CLIENTS_OF_EACH = 10  # every API and size, streamed and not
STALL_SECONDS = 0.3


@pytest.fixture(autouse=True)
def _fast_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """So fast that silence is no prefill, and an abort that nothing confirms is soon given up."""
    monkeypatch.setattr(patience, "SLOWEST_PREFILL_TOKENS_PER_SECOND", 1e6)
    monkeypatch.setattr(abort, "CONFIRM_SECONDS", 0.5)


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
async def test_whatever_a_server_does_every_client_gets_an_answer_and_nothing_is_left(
    fake: FakeServer, group: list[str]
) -> None:
    fake.answer = as_named
    async with proxy_before(fake, stall_seconds=STALL_SECONDS) as proxy:
        await crowd(proxy, CLIENTS_OF_EACH, faults=group)
        await check_at_rest(proxy)


@pytest.mark.parametrize("seed", range(2))
async def test_clients_that_leave_at_random_from_a_server_that_fails_at_random(
    fake: FakeServer, seed: int
) -> None:
    dice = random.Random(seed)
    fake.pool_tokens = 20_000
    fake.answer = as_named
    async with proxy_before(fake, stall_seconds=STALL_SECONDS) as proxy:
        leaving = [
            asyncio.create_task(pass_by(proxy, number, dice, 0.3, dice.choice(("", *NAMES))))
            for number in range(60)
        ]
        await crowd(proxy, 5, over_seconds=0.3, faults=dice.choices(NAMES, k=4))
        await asyncio.gather(*leaving)
        await check_at_rest(proxy)
