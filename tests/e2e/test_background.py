"""Responses in the background: charged until the server says that they have ended, and given back once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from proxy.api import background
from proxy.api.outgoing import Outgoing
from tests.e2e.response_server import ResponseServer
from tests.fakes import Received, Wire
from tests.proxies import Running, proxy_before
from tests.raw_http import Connection, request
from tests.waiting import eventually

RESPONSES = "/v1/responses"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "Hello", "background": True, "max_output_tokens": 500, **fields}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FIRST_LOOK_SECONDS", 0.03)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ResponseServer]:
    made = ResponseServer()
    await made.start()
    yield made
    await eventually(lambda: not made.open)
    await made.stop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"left behind: {others}"


@pytest_asyncio.fixture
async def proxy(server: ResponseServer) -> AsyncIterator[Running]:
    async with proxy_before(server) as running:
        yield running


async def begun(proxy: Running) -> str:
    """A response that runs in the background; its id."""
    reply = await proxy.ask(body(), RESPONSES)
    assert reply.status == 200, reply.body
    document = reply.json()
    assert document["status"] == "queued"
    assert reply.header("x-admission-lane") == "short"
    name: str = document["id"]
    return name


def charged(proxy: Running) -> int:
    return sum(line.pool.committed_tokens for line in proxy.app.gate.controller.lines.values())


async def test_it_stays_charged_until_a_poll_says_that_it_has_ended(
    server: ResponseServer, proxy: Running
) -> None:
    name = await begun(proxy)
    await eventually(lambda: len(server.polls) >= 2)
    assert charged(proxy) > 100
    assert proxy.metric("requests_total", lane="short", outcome="completed") == 0
    server.end(name)
    await proxy.settled()
    assert proxy.metric("requests_total", lane="short", outcome="completed") == 1
    assert proxy.metric("completion_tokens_total", lane="short") == 60
    assert proxy.metric("prompt_tokens_total", lane="short") == 40


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("incomplete", "completed"), ("failed", "failed"), ("cancelled", "disconnected")],
)
async def test_every_kind_of_end_gives_its_place_back(
    server: ResponseServer, proxy: Running, status: str, outcome: str
) -> None:
    server.end(await begun(proxy), status)
    await proxy.settled()
    assert proxy.metric("requests_total", lane="short", outcome=outcome) == 1


async def test_its_first_token_is_not_the_answer(server: ResponseServer, proxy: Running) -> None:
    """The answer comes before the prompt is read: it must not count as read, nor teach a rate."""
    server.uncached, server.waiting = 5000, 1
    name = await begun(proxy)
    job = next(iter(proxy.app.gate.controller.jobs.values()))
    assert not job.prefill_done
    server.uncached = server.waiting = 0
    server.end(name)
    await proxy.settled()


async def test_a_clients_own_poll_is_forwarded_and_listened_to(
    server: ResponseServer, proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FIRST_LOOK_SECONDS", 4.0)
    name = await begun(proxy)
    running = await proxy.get(f"{RESPONSES}/{name}")
    assert (running.status, running.json()["status"]) == (200, "queued")
    server.end(name)
    ended = await proxy.get(f"{RESPONSES}/{name}?include=usage")
    assert ended.json()["status"] == "completed"
    await proxy.settled(2.0)
    assert len(server.polls) == 2  # the client's, and none of the proxy's own


async def test_a_question_that_the_server_refuses_ends_nothing(
    server: ResponseServer, proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client chooses what it asks with: headers larger than the server takes, a second cancellation."""
    monkeypatch.setattr(background, "FIRST_LOOK_SECONDS", 4.0)
    name = await begun(proxy)
    respond = server._respond

    async def particular(request: Received, wire: Wire) -> None:
        if "refused" in request.target:
            await wire.json({"error": {"message": "too large"}}, 431)
        else:
            await respond(request, wire)

    monkeypatch.setattr(server, "_respond", particular)
    assert (await proxy.get(f"{RESPONSES}/{name}?refused")).status == 431
    await eventually(lambda: server.polls != [])  # the proxy looks for itself
    await asyncio.sleep(0.05)
    assert charged(proxy) > 0
    server.end(name)
    assert (await proxy.get(f"{RESPONSES}/{name}?refused")).status == 431
    await proxy.settled(2.0)
    assert proxy.metric("requests_total", lane="short", outcome="completed") == 1
    assert proxy.metric("completion_tokens_total", lane="short") == 60


async def test_cancelling_is_forwarded_and_gives_its_place_back(
    server: ResponseServer, proxy: Running
) -> None:
    name = await begun(proxy)
    reply = await proxy.ask({}, f"{RESPONSES}/{name}/cancel")
    assert (reply.status, reply.json()["status"]) == (200, "cancelled")
    await proxy.settled()
    again = await proxy.ask({}, f"{RESPONSES}/{name}/cancel")
    assert (again.status, again.json()["status"]) == (200, "cancelled")


async def test_an_answer_that_came_is_not_ended_by_a_client_that_leaves(
    server: ResponseServer, proxy: Running
) -> None:
    name = await begun(proxy)  # its connection is closed by now
    await asyncio.sleep(0.1)
    assert server.kept[name] == "queued"
    assert charged(proxy) > 0
    server.end(name)
    await proxy.settled()


async def test_a_client_that_leaves_before_it_knows_the_id_ends_it(
    server: ResponseServer, proxy: Running
) -> None:
    server.slow = asyncio.Event()
    async with await Connection.open(proxy.port) as connection:
        await connection.send(request(body(), RESPONSES))
        await eventually(lambda: server.names() != [])
        connection.leave(reset=True)
    await eventually(lambda: proxy.metric("disconnects_total", phase="prefilling") == 1)
    assert charged(proxy) > 0
    server.slow.set()
    await proxy.settled()
    assert list(server.kept.values()) == ["cancelled"]


async def test_a_server_that_was_started_again_has_forgotten_it(
    server: ResponseServer, proxy: Running
) -> None:
    name = await begun(proxy)
    server.kept.clear()
    await proxy.settled()
    assert proxy.metric("requests_total", lane="short", outcome="broken") == 1
    assert (await proxy.get(f"{RESPONSES}/{name}")).status == 404  # the server's own


async def test_a_server_that_is_gone_for_long_has_ended_it(server: ResponseServer, proxy: Running) -> None:
    proxy.app.services.background.gone_seconds = 0.3
    await begun(proxy)
    await server.stop()
    assert charged(proxy) > 0
    await proxy.settled()


async def test_a_moment_without_the_server_ends_nothing(server: ResponseServer, proxy: Running) -> None:
    proxy.app.services.background.gone_seconds = 5.0
    name = await begun(proxy)
    await server.stop()
    await asyncio.sleep(0.4)
    assert charged(proxy) > 0
    await server.start()
    server.end(name)
    await proxy.settled()
    assert proxy.metric("requests_total", lane="short", outcome="completed") == 1


async def test_it_is_cancelled_when_it_runs_for_too_long(server: ResponseServer, proxy: Running) -> None:
    proxy.app.services.background.longest_seconds = 0.3
    name = await begun(proxy)
    await proxy.settled()
    assert server.kept[name] == "cancelled"


async def test_a_client_that_leaves_with_the_last_byte_has_its_id(
    server: ResponseServer, proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = Outgoing.chunk

    async def slow(out: Outgoing, data: bytes) -> None:
        await chunk(out, data)
        await asyncio.sleep(0.1)  # meanwhile the client has left

    monkeypatch.setattr(Outgoing, "chunk", slow)
    name = await begun(proxy)
    await eventually(lambda: name in proxy.app.services.background.running)
    assert proxy.metric("disconnects_total", phase="streaming") == 1
    assert server.kept[name] == "queued"
    server.end(name)
    await proxy.settled()


async def test_an_answer_that_breaks_off_leaves_no_work_that_nobody_can_find(
    server: ResponseServer, proxy: Running
) -> None:
    async def half(request: Received, wire: Wire) -> None:
        name = request.json()["request_id"]
        server.kept[name] = "queued"
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
        wire.reset()

    server._create = half  # type: ignore[method-assign]
    assert not (await proxy.ask(body(), RESPONSES)).whole
    await proxy.settled()
    assert list(server.kept.values()) == ["cancelled"]


async def test_a_server_that_is_full_takes_it_later(server: ResponseServer, proxy: Running) -> None:
    create, refusals = server._create, [1, 1]

    async def full(request: Received, wire: Wire) -> None:
        if refusals and refusals.pop():
            await wire.json({"error": {"message": "queue is full", "code": 503}}, 503)
        else:
            await create(request, wire)

    server._create = full  # type: ignore[method-assign]
    server.end(await begun(proxy))
    await proxy.settled()


async def test_what_the_server_refuses_is_over_at_once(server: ResponseServer, proxy: Running) -> None:
    async def refuse(_: Received, wire: Wire) -> None:
        await wire.json({"error": {"message": "Response store is disabled.", "code": 400}}, 400)

    server._create = refuse  # type: ignore[assignment,method-assign]
    reply = await proxy.ask(body(), RESPONSES)
    assert reply.status == 400
    await proxy.settled(0.2)
    assert server.polls == []


async def test_a_stream_in_the_background_ends_with_its_connection(
    server: ResponseServer, proxy: Running
) -> None:
    reply = await proxy.ask(body(stream=True), RESPONSES)
    assert b"response.completed" in reply.body
    await proxy.settled(0.2)
    assert server.polls == []


async def test_elsewhere_background_is_still_refused(server: ResponseServer, proxy: Running) -> None:
    reply = await proxy.ask({"text": "a", "background": True}, "/generate")
    assert (reply.status, reply.json()["error"]["param"]) == (400, "background")


async def test_draining_waits_for_it_and_clients_may_still_ask(
    server: ResponseServer, proxy: Running
) -> None:
    name = await begun(proxy)
    proxy.app.gate.drain()
    assert proxy.app.gate.open_tickets == 1
    assert (await proxy.ask(body(), RESPONSES)).status == 503
    assert (await proxy.get(f"{RESPONSES}/{name}")).status == 200
    server.end(name)
    await proxy.settled()
    assert proxy.app.gate.open_tickets == 0


async def test_leaving_cancels_it(server: ResponseServer) -> None:
    async with proxy_before(server) as proxy:
        name = await begun(proxy)
    assert server.kept[name] == "cancelled"
    assert proxy.app.gate.open_tickets == 0


async def test_polls_become_rarer(server: ResponseServer, proxy: Running) -> None:
    name = await begun(proxy)
    work = proxy.app.services.background.running[name]
    started = asyncio.get_running_loop().time()
    await work._next(proxy.app.backend_of("b0"), name, age_seconds=6.0)
    assert asyncio.get_running_loop().time() - started > 0.4
    server.end(name)
    await proxy.settled()
