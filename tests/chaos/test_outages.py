"""A server that is gone, hangs, does not say how it is, or comes back as another."""

import asyncio

import pytest

from proxy.upstream import poll
from tests.chaos import faults
from tests.chaos.crowd import crowd, statuses
from tests.chaos.rest import check_at_rest
from tests.e2e.refusing import PATIENCE, check_refusal
from tests.fakes import FakeServer, Received, Wire, chat_body
from tests.proxies import Running, proxy_before
from tests.raw_http import chat
from tests.waiting import eventually

ANSWERS = {200, 502, 503}


@pytest.fixture
def soon_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is called down within a second."""
    monkeypatch.setattr(poll, "_POLL_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(poll, "_LATE_SECONDS_UNTIL_DOWN", 0.4)


async def is_down(proxy: Running) -> None:
    await eventually(lambda: proxy.metric("backend_up", backend="b0") == 0)


async def test_while_nobody_listens_clients_wait_and_are_told_in_the_end(fake: FakeServer) -> None:
    async with proxy_before(fake, max_queue_seconds=0.5) as proxy:
        await fake.stop()
        assert set(statuses(await crowd(proxy, 20))) == {503}
        await fake.start()
        await eventually(lambda: proxy.metric("backend_up", backend="b0") == 1)
        await check_at_rest(proxy)


async def test_a_server_that_is_gone_for_a_while_costs_only_what_was_running(fake: FakeServer) -> None:
    fake.answer = faults.drip
    async with proxy_before(fake) as proxy:
        clients = asyncio.create_task(crowd(proxy, 40, over_seconds=1.5))
        await asyncio.sleep(0.4)
        begun = len(fake.posts())
        await fake.stop()
        await asyncio.sleep(0.6)
        await fake.start()
        found = [client.reply for client in await clients if client.reply is not None]
        assert sum(reply.status == 502 or b"upstream_broken" in reply.body for reply in found) <= begun
        for reply in found:
            if reply.status == 503:
                check_refusal(reply, 503, "no_backend")
        assert {reply.status for reply in found[-5:]} == {200}
        await check_at_rest(proxy)


@pytest.mark.usefixtures("soon_down")
async def test_a_server_that_accepts_and_hangs_is_given_up_with_all_that_it_has(fake: FakeServer) -> None:
    async with proxy_before(fake, max_queue_seconds=1.0) as proxy:
        fake.freeze = asyncio.Event()
        assert set(statuses(await crowd(proxy, 20))) <= ANSWERS - {200}
        await is_down(proxy)
        fake.freeze.set()
        fake.freeze = None
        await eventually(lambda: proxy.metric("backend_up", backend="b0") == 1)
        await check_at_rest(proxy)


class Taciturn(FakeServer):
    """Serves, and hangs when it is asked how it is."""

    quiet = False

    async def _read_only(self, path: str, wire: Wire) -> None:
        if self.quiet:
            await asyncio.Event().wait()
        await super()._read_only(path, wire)


@pytest.mark.usefixtures("soon_down")
async def test_polls_that_stall_stop_nobody_whose_answer_flows(fake: FakeServer) -> None:
    server = Taciturn(answer=faults.drip)
    await server.start()
    async with proxy_before(server) as proxy:
        server.quiet = True
        assert set(statuses(await crowd(proxy, 40, over_seconds=1.2))) == {200}
        assert len(server.posts()) >= 40
        server.quiet = False
        await check_at_rest(proxy)
    await server.stop()


async def test_one_that_comes_back_smaller_under_load_takes_what_still_fits(fake: FakeServer) -> None:
    fake.answer = faults.drip
    async with proxy_before(fake) as proxy:
        clients = asyncio.create_task(crowd(proxy, 40, over_seconds=1.0))
        await asyncio.sleep(0.3)
        await fake.stop()
        fake.pool_tokens = 8000  # less than the long ones need
        await fake.start()
        found = statuses(await clients)
        assert set(found) <= {*ANSWERS, 400}
        assert 400 in found
        fake.answer = faults.healthy
        await proxy.settled(15)
        assert (await proxy.ask(chat())).status == 200
        await proxy.settled()


# --- what is no fault of the server ---------------------------------------------------------------


async def test_forty_bad_requests_and_forty_full_queues_are_no_reason_to_call_it_down(
    fake: FakeServer,
) -> None:
    async def answer(request: Received, wire: Wire) -> None:
        if b"bad" in request.body:
            await wire.json({"object": "error", "message": "bad request", "code": 400}, 400)
        elif b"full" in request.body:
            await wire.json({"object": "error", "message": "The request queue is full."}, 503)
        else:
            await wire.json(chat_body())

    fake.answer = answer
    async with proxy_before(fake) as proxy:
        bad = await asyncio.gather(*(proxy.ask(chat("bad")) for _ in range(40)))
        assert [reply.status for reply in bad] == [400] * 40
        assert len(fake.posts()) == 40  # none of them was sent twice
        patience = [(PATIENCE, "1000")]
        full = await asyncio.gather(*(proxy.ask(chat("full"), headers=patience) for _ in range(40)))
        for reply in full:
            check_refusal(reply, 429, "deadline")
        assert len(fake.posts()) <= 40 + 3 * 40  # its first try, and one after each pause
        assert proxy.metric("backend_up", backend="b0") == 1
        assert (await proxy.ask(chat())).status == 200
        await check_at_rest(proxy)


async def test_a_fleet_of_one_full_server_and_one_free_serves_at_once(fake: FakeServer) -> None:
    fake.answer = lambda _, wire: wire.json({"object": "error", "message": "full"}, 503)
    other = await FakeServer().start()
    async with proxy_before(fake, other) as proxy:
        replies = await asyncio.gather(*(proxy.ask(chat()) for _ in range(20)))
        assert [reply.status for reply in replies] == [200] * 20
        assert proxy.metric("backend_up", backend="b0") == 1
        await proxy.settled()
    await other.stop()
