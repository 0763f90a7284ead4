"""A pool that is busy, and what a refusal must look like."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer
from tests.proxies import Running, proxy_before
from tests.raw_http import Reply
from tests.waiting import eventually

PATIENCE = "x-request-timeout-ms"


@asynccontextmanager
async def busy(fake: FakeServer, **settings: Any) -> AsyncIterator[tuple[Running, Held]]:
    """A pool of 20,000 tokens of which one request holds 15,000 until it is let go."""
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake, **settings) as proxy:
        first = asyncio.create_task(proxy.ask(ids(15_000, stream=True), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        await eventually(lambda: proxy.app.gate.controller.lines["b0"].pool.backlog_tokens == 0)
        try:
            yield proxy, held
        finally:
            held.go.set()
            reply = await first
        assert reply.whole
        await proxy.settled()


def check_refusal(reply: Reply, status: int, reason: str, *, retry: bool = True) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert reply.status == status
    assert reply.whole
    assert reply.header("content-type") == "application/json"
    assert reply.header("x-admission-reason") == reason
    assert reply.header("x-request-id")
    assert reply.header("x-admission-lane") is None
    after = reply.header("retry-after")
    assert (after is not None) == retry
    if after is not None:
        assert 1 <= int(after) <= 60
    return error
