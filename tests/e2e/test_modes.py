"""PROXY_MODE: what `shadow` and `off` never do, and what shadow still tells."""

import asyncio

import pytest

from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer
from tests.proxies import proxy_before
from tests.raw_http import chat
from tests.waiting import eventually


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_nothing_is_held_and_nothing_refused(fake: FakeServer, mode: str) -> None:
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake, mode=mode) as proxy:
        hurried = [("x-request-timeout-ms", "1")]
        asked = [
            asyncio.create_task(proxy.ask(ids(tokens, stream=True), COMPLETIONS, headers=hurried))
            for tokens in (15_000, 15_000, 19_000, 25_000)
        ]
        await eventually(lambda: held.running == 4)
        held.go.set()
        replies = await asyncio.gather(*asked)
        assert {reply.status for reply in replies} == {200}
        assert all(reply.whole for reply in replies)
        await proxy.settled()


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_who_leaves_is_aborted_all_the_same(fake: FakeServer, mode: str) -> None:
    held = Held(fake, silent=True)
    fake.answer = held
    async with proxy_before(fake, mode=mode) as proxy:
        asked = asyncio.create_task(proxy.ask(chat(stream=True)))
        await eventually(lambda: held.running == 1)
        asked.cancel()
        await eventually(lambda: held.running == 0)
        await proxy.settled()
        assert len(fake.aborts()) == 1


@pytest.mark.parametrize("mode", ["shadow", "off"])
async def test_what_would_kill_or_steer_the_server_is_kept_from_it_in_every_mode(
    fake: FakeServer, mode: str
) -> None:
    async with proxy_before(fake, mode=mode) as proxy:
        assert (await proxy.ask({"model": "t", "prompt": [99_999]}, COMPLETIONS)).status == 400
        assert (await proxy.ask(chat(custom_logit_processor="x"))).status == 400
        assert (await proxy.get("/flush_cache")).status == 404
        assert fake.posts() == []


@pytest.mark.parametrize("mode", ["enforce", "shadow", "off"])
async def test_the_mode_is_there_for_all_to_see(fake: FakeServer, mode: str) -> None:
    async with proxy_before(fake, mode=mode) as proxy:
        text = (await proxy.get("/metrics")).body.decode()
        assert f'mode="{mode}"' in text
