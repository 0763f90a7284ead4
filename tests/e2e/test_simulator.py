"""The whole path before a simulated SGLang: mixed traffic, slices, clients of all sorts, an empty ledger."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest

from proxy.backend_spec import BackendSpec
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.pace import Pace
from proxy.simulator.server import ServerConfig
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Connection, Reply, chat, request
from tests.simulator.serving import serving
from tests.waiting import eventually

ENGINE = EngineConfig(pool_tokens=60_000, context_tokens=100_000, pace=Pace(1e-5, 0.0, 1e-3, 0.0))


@pytest.fixture
async def proxy() -> AsyncIterator[Running]:
    """A proxy before a simulator that prefills 100,000 tokens a second."""
    async with (
        serving(ServerConfig(ENGINE)) as url,
        proxy_before(BackendSpec(url, "simulated")) as running,
    ):
        yield running
        await running.settled(15)


def words(count: int, seed: int) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(("alpha", "beta", "gamma", "delta")) for _ in range(count))


def tokens_in(reply: Reply) -> int:
    """Pieces of content in a chat stream."""
    events = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    return sum(1 for delta in deltas if delta.get("content"))


async def test_a_stream_comes_whole_and_is_counted(proxy: Running) -> None:
    wants = {"stream": True, "stream_options": {"include_usage": True}}
    reply = await proxy.ask(chat(words(300, 1), max_tokens=40, ignore_eos=True, **wants))
    assert reply.whole
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert tokens_in(reply) > 0
    await proxy.settled()
    assert proxy.metric("completion_tokens_total", lane="short") == 40
    assert proxy.app.sizer.stats().samples["tiny"] == 1


async def test_mixed_traffic_with_clients_that_leave_is_served_and_leaves_nothing(proxy: Running) -> None:
    dice = random.Random(3)

    async def short(seed: int) -> int:
        await asyncio.sleep(dice.random() * 1.5)
        reply = await proxy.ask(chat(words(200, seed), stream=seed % 2 == 0, max_tokens=20, ignore_eos=True))
        return reply.status if reply.whole else 0

    async def long(seed: int) -> int:
        reply = await proxy.ask(chat(words(25_000, seed), stream=True, max_tokens=30, ignore_eos=True))
        assert reply.header("x-admission-lane") in ("long", "giant")
        return reply.status if reply.whole else 0

    async def leaving(seed: int) -> None:
        connection = await Connection.open(proxy.port)
        body = chat(words(dice.choice((200, 25_000)), seed), stream=True, max_tokens=50, ignore_eos=True)
        await connection.send(request(body))
        await asyncio.sleep(dice.random() * 0.8)
        connection.leave(reset=seed % 2 == 0)

    shorts, longs, leavers = range(30), range(100, 104), range(200, 212)
    statuses = await asyncio.gather(*(short(n) for n in shorts), *(long(n) for n in longs))
    await asyncio.gather(*(leaving(n) for n in leavers), *(short(n + 1000) for n in range(5)))
    assert statuses == [200] * len(statuses)
    await proxy.settled(15)

    def idle() -> bool:  # once a poll younger than the last abort has come
        sample = next(iter(proxy.app.gate.samples.values()))
        return (sample.running, sample.waiting) == (0, 0)

    await eventually(idle)


async def test_a_burst_beyond_what_may_wait_is_refused_honestly_and_served_when_it_returns(
    proxy: Running,
) -> None:
    async def ask(seed: int) -> Reply:
        patience = [("x-request-timeout-ms", "700")]
        body = chat(words(25_000, seed), max_tokens=30, ignore_eos=True)
        return await proxy.ask(body, headers=patience)

    replies = await asyncio.gather(*(ask(seed) for seed in range(8)))
    refused = [reply for reply in replies if reply.status == 429]
    assert {reply.status for reply in replies} == {200, 429}
    assert {reply.header("x-admission-reason") for reply in refused} <= {"would_miss_deadline", "deadline"}
    assert all(1 <= int(reply.header("retry-after") or 0) <= 60 for reply in refused)
    await asyncio.sleep(min(int(reply.header("retry-after") or 0) for reply in refused))
    assert (await ask(99)).status == 200


async def test_models_and_tokenize_are_the_servers_own(proxy: Running) -> None:
    models = (await proxy.get("/v1/models")).json()
    assert models["data"][0]["id"] == "simulated"
    counted = (await proxy.ask({"prompt": "one two three"}, "/tokenize")).json()
    assert counted["count"] > 0
    assert (await proxy.ask(chat(words(50, 5), max_tokens=5), CHAT)).status == 200
