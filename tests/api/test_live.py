"""`/admission/live`: what is in a frame, who may watch, and that watching ends."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from proxy.admission.types import Lane, Reason, Segment
from proxy.api import live
from proxy.api.live import MOST_VIEWERS, Live
from proxy.api.live_frame import MOST_BLOCKS, MOST_WAITING, frame
from proxy.telemetry.recent import BUCKETS, Recent
from tests.api.gates import FACTS, Setup, request
from tests.fakes import FakeServer
from tests.proxies import Running, proxy_before
from tests.raw_http import Connection
from tests.raw_http import request as http_request
from tests.waiting import eventually

PAGE, EVENTS = "/admission/live", "/admission/live/events"


@pytest.fixture
def world() -> Setup:
    return Setup()


def only_pool(world: Setup) -> dict[str, Any]:
    found: dict[str, Any] = frame(world.gate)["pools"][0]
    return found


def drawn_tokens(pool: dict[str, Any]) -> int:
    blocks: int = sum(block["tokens"] for block in pool["blocks"])
    others: int = pool["others"]["tokens"]
    shared: int = pool["shared_tokens"]
    return blocks + others + shared


# --- a frame --------------------------------------------------------------------------------------


async def test_blocks_add_up_to_the_committed_tokens(world: Setup) -> None:
    for number in range(5):
        world.gate.first_token(world.gate.submit(request(f"r{number}", 1000 + number)))
    pool = only_pool(world)
    assert len(pool["blocks"]) == 5
    assert drawn_tokens(pool) == pool["committed_tokens"] > 5000


async def test_a_prefix_whose_payer_has_ended_is_drawn_as_shared(world: Setup) -> None:
    prefix = (Segment(b"k", 600),)
    payer = world.gate.submit(request("payer", 700, segments=prefix))
    world.gate.first_token(payer)
    world.gate.submit(request("rider", 800, segments=prefix))
    assert only_pool(world)["shared_tokens"] == 0
    world.gate.finish(payer, completed=True)
    pool = only_pool(world)
    assert pool["shared_tokens"] == 600
    assert drawn_tokens(pool) == pool["committed_tokens"]


async def test_of_many_contexts_the_largest_are_drawn_and_the_rest_is_one_block(world: Setup) -> None:
    world.gate.pool_up("b", replace(FACTS, pool_tokens=400_000, max_running_requests=1000))
    for number in range(MOST_BLOCKS + 30):
        ticket = world.gate.submit(request(f"r{number}", 100 + number, max_tokens=10))
        world.gate.first_token(ticket)
    pool = only_pool(world)
    assert len(pool["blocks"]) == MOST_BLOCKS
    assert pool["others"]["count"] == 30
    assert drawn_tokens(pool) == pool["committed_tokens"]


async def test_the_queue_has_positions_waits_and_predictions_for_its_head(world: Setup) -> None:
    world.gate.submit(request("a", 15_000))
    for number in range(MOST_WAITING + 3):
        world.gate.submit(request(f"w{number}", 15_000, wait_limit_seconds=1e6))
    world.clock.now += 2
    shorts, longs = only_pool(world)["queues"]
    assert shorts["requests"] == 0
    assert longs["requests"] == MOST_WAITING + 3
    assert longs["tokens"] == 15_000 * (MOST_WAITING + 3)
    assert [row["position"] for row in longs["head"]] == list(range(1, MOST_WAITING + 1))
    assert all(row["waited"] == 2.0 for row in longs["head"])
    assert all(row["eta"] is not None for row in longs["head"])


async def test_a_conversation_is_shown_as_a_hash_and_one_without_a_name_as_none(world: Setup) -> None:
    world.gate.submit(request("a", session="alice@example.org"))
    world.gate.submit(request("b", session="alice@example.org"))
    world.gate.submit(request("c", session="alice@example.org", tenant="other"))
    world.gate.submit(request("d"))
    names = [block["conversation"] for block in only_pool(world)["blocks"]]
    assert names[0] == names[1] != names[2]
    assert names[3] is None
    assert "alice" not in json.dumps(frame(world.gate))


async def test_first_tokens_and_refusals_are_counted(world: Setup) -> None:
    ticket = world.gate.submit(request("a"))
    world.clock.now += 0.5
    world.gate.first_token(ticket)
    world.gate.submit(request("b", 30_000))
    shown = frame(world.gate)
    assert shown["ttft"]["short"]["last"] == 0.5
    assert shown["ttft"]["short"]["worst"][-1] == 0.5
    assert shown["ttft"]["giant"]["last"] is None
    assert shown["refusals"] == {"context_length_exceeded": 1}


def test_the_ring_of_times_keeps_the_worst_of_each_bucket_for_two_minutes() -> None:
    recent = Recent()
    recent.first_token(1000.0, Lane.LONG, 1.0)
    recent.first_token(1001.0, Lane.LONG, 3.0)
    recent.first_token(1010.0, Lane.LONG, 2.0)
    values = recent.worst_ttft_seconds(1010.5, Lane.LONG)
    assert len(values) == BUCKETS
    assert values[-6:] == [3.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    assert not any(recent.worst_ttft_seconds(1010.0 + 2 * BUCKETS, Lane.LONG))
    recent.refused(Reason.QUEUE_FULL)
    assert recent.refusals == {Reason.QUEUE_FULL: 1}


async def test_viewers_share_a_frame_made_a_moment_ago(world: Setup) -> None:
    page = Live(world.gate)
    first = page.event()
    world.gate.submit(request("a"))
    assert page.event() is first
    world.clock.now += 2 * live.SHARED_SECONDS
    assert page.event() != first


# --- over HTTP ------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def fake(one_vocabulary: None) -> AsyncIterator[FakeServer]:
    server = await FakeServer().start()
    yield server
    await server.stop()


async def watch(port: int, headers: tuple[tuple[str, str], ...] = ()) -> tuple[Connection, int]:
    """A viewer whose head has come, and its status."""
    connection = await Connection.open(port)
    await connection.send(http_request(None, EVENTS, method="GET", headers=headers))
    return connection, (await connection.head()).status


async def next_frame(connection: Connection) -> dict[str, Any]:
    while True:
        chunk = await connection.chunk()
        if chunk.startswith(b"data: "):
            found: dict[str, Any] = json.loads(chunk.removeprefix(b"data: "))
            return found


def viewers(proxy: Running) -> int:
    return proxy.app._live.viewers


async def test_the_page_is_whole_in_itself_and_its_policy_allows_nothing_else(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        reply = await proxy.get(PAGE)
        assert reply.status == 200
        assert reply.header("content-type") == "text/html; charset=utf-8"
        assert reply.header("cache-control") == "no-store"
        policy = reply.header("content-security-policy") or ""
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "connect-src 'self'" in policy
        assert "unsafe" not in policy
        urls = set(re.findall(r"https?://[^\s\"']+", reply.body.decode()))
        assert urls == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches


async def test_events_come_by_themselves_and_nothing_runs_without_a_viewer(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        before = len(asyncio.all_tasks())
        connection, status = await watch(proxy.port)
        assert status == 200
        frames = [await next_frame(connection) for _ in range(3)]
        assert [frame["pools"][0]["name"] for frame in frames] == ["b0"] * 3
        connection.leave()
        await eventually(lambda: viewers(proxy) == 0)
        await eventually(lambda: len(asyncio.all_tasks()) <= before)


async def test_so_many_watch_and_no_more_until_one_leaves(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        watching = [await watch(proxy.port) for _ in range(MOST_VIEWERS)]
        await eventually(lambda: viewers(proxy) == MOST_VIEWERS)
        reply = await proxy.get(EVENTS)
        assert (reply.status, reply.header("retry-after")) == (503, "10")
        watching[0][0].leave(reset=True)
        await eventually(lambda: viewers(proxy) == MOST_VIEWERS - 1)
        again, status = await watch(proxy.port)
        assert status == 200
        for connection, _ in [*watching[1:], (again, 200)]:
            connection.leave()
        await eventually(lambda: viewers(proxy) == 0)


async def test_streams_end_when_the_proxy_leaves_and_none_begins(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        connection, _ = await watch(proxy.port)
        await next_frame(connection)
        proxy.app.end_viewers()
        async with asyncio.timeout(1):
            while await connection.chunk():
                pass
        assert (await proxy.get(EVENTS)).status == 503
        connection.leave()


async def test_a_head_request_ends_at_once(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(None, EVENTS, method="HEAD")
        assert reply.status == 200
        assert (reply.header("content-type") or "").startswith("text/event-stream")
        assert viewers(proxy) == 0


def basic(password: str) -> tuple[str, str]:
    return "authorization", "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


@pytest.mark.parametrize("path", [PAGE, EVENTS])
async def test_page_and_events_need_the_admin_key_which_a_browser_can_give(
    fake: FakeServer, path: str
) -> None:
    async with proxy_before(fake, admin_key="s3cret:x") as proxy:
        reply = await proxy.get(path)
        assert reply.status == 401
        assert (reply.header("www-authenticate") or "").startswith("Basic ")
        for wrong in (basic("guess"), ("authorization", "Basic ???"), ("authorization", "Bearer no")):
            assert (await proxy.get(path, [wrong])).status == 401
        for right in (basic("s3cret:x"), ("authorization", "Bearer s3cret:x"), ("x-admin-key", "s3cret:x")):
            assert (await proxy.ask(None, path, method="HEAD", headers=[right])).status == 200


async def test_a_viewer_who_does_not_read_holds_nobody_up(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        deaf = await Connection.open(proxy.port, receive_buffer_bytes=4096)
        await deaf.send(http_request(None, EVENTS, method="GET"))
        await eventually(lambda: viewers(proxy) == 1)
        connection, _ = await watch(proxy.port)
        async with asyncio.timeout(3):
            for _ in range(3):
                await next_frame(connection)
        for viewer in (deaf, connection):
            viewer.leave(reset=True)
        await eventually(lambda: viewers(proxy) == 0)
