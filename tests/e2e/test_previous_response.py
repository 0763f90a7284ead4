"""`previous_response_id`: charged with its history, sent to the server that has it, and nobody else's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.response_server import ResponseServer
from tests.proxies import Running, proxy_before
from tests.raw_http import Reply
from tests.waiting import eventually

RESPONSES = "/v1/responses"


@asynccontextmanager
async def two(**settings: Any) -> AsyncIterator[tuple[Running, list[ResponseServer]]]:
    servers = [ResponseServer(), ResponseServer()]
    for server in servers:
        await server.start()
    try:
        async with proxy_before(*servers, **settings) as proxy:
            yield proxy, servers
    finally:
        for server in servers:
            await server.stop()


async def respond(proxy: Running, headers: Any = (), **fields: Any) -> Reply:
    body = {"model": "tiny", "input": "Hello", "max_output_tokens": 50, **fields}
    return await proxy.ask(body, RESPONSES, headers=headers)


def owner(servers: list[ResponseServer], name: str) -> ResponseServer:
    return next(server for server in servers if name in server.kept)


async def test_a_turn_goes_where_the_history_is_and_so_do_questions_about_it() -> None:
    async with two() as (proxy, servers):
        names = [(await respond(proxy)).json()["id"] for _ in range(4)]
        for name in names:
            home = owner(servers, name)
            reply = await respond(proxy, previous_response_id=name)
            assert reply.status == 200
            assert reply.json()["id"] in home.kept
            assert (await proxy.get(f"{RESPONSES}/{name}")).json()["id"] == name
        await proxy.settled()


async def test_it_goes_there_although_another_server_would_be_sooner() -> None:
    async with two() as (proxy, servers):
        name = (await respond(proxy)).json()["id"]
        home = owner(servers, name)
        pool = proxy.app.gate.controller.lines["b0" if home is servers[0] else "b1"].pool
        home.used = 186_000  # by others, around the proxy: there is no room now
        await eventually(lambda: pool.foreign_tokens > 180_000)
        assert (await respond(proxy)).json()["id"] not in home.kept
        reply = await respond(proxy, [("x-request-timeout-ms", "50")], previous_response_id=name)
        assert reply.status == 429
        assert len(home.kept) == 1


async def test_the_history_is_charged_with_the_prompt() -> None:
    async with two() as (proxy, _):
        first = (await respond(proxy)).json()["id"]
        await proxy.settled()
        responses = proxy.app.services.responses
        kept = responses.find("default", first)
        assert kept is not None
        assert kept.tokens == 100  # 40 in, 60 out, as the server said
        seen: list[int] = []
        submit = proxy.app.gate.submit

        def watched(request: Any, sliced: Any = None) -> Any:
            seen.append(request.prompt_tokens)
            return submit(request, sliced)

        proxy.app.gate.submit = watched  # type: ignore[method-assign]
        await respond(proxy)
        await respond(proxy, previous_response_id=first)
        assert seen[1] == seen[0] + 100


async def test_a_small_turn_after_a_long_one_is_short_work() -> None:
    async with two() as (proxy, servers):
        for server in servers:
            server.input_tokens = 12_100
        first = await respond(proxy, input="The quick brown fox jumps over the lazy dog. " * 1_200)
        assert first.header("x-admission-lane") == "long"
        await proxy.settled()
        turn = await respond(proxy, previous_response_id=first.json()["id"])
        assert turn.header("x-admission-lane") == "short"
        await proxy.settled()
        other = await respond(proxy, previous_response_id=first.json()["id"], instructions="Shout.")
        assert other.header("x-admission-lane") == "long"  # it begins with something else


async def test_a_history_that_no_pool_can_take_is_refused_with_both_numbers() -> None:
    async with two() as (proxy, servers):
        name = (await respond(proxy)).json()["id"]
        kept = proxy.app.services.responses.find("default", name)
        assert kept is not None
        proxy.app.services.responses.keep("default", name, replace(kept, tokens=500_000))
        reply = await respond(proxy, previous_response_id=name)
        error = reply.json()["error"]
        assert (reply.status, error["code"]) == (400, "context_length_exceeded")
        assert error["needed_tokens"] > 500_000
        assert sum(len(server.kept) for server in servers) == 1


async def test_it_teaches_nothing_about_counting() -> None:
    async with two() as (proxy, _):
        name = (await respond(proxy)).json()["id"]
        samples = dict(proxy.app.sizer.stats().samples)
        await respond(proxy, previous_response_id=name)
        await proxy.settled()
        assert proxy.app.sizer.stats().samples == samples


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}])
async def test_streams_and_background_responses_can_be_gone_on_from(fields: dict[str, Any]) -> None:
    async with two() as (proxy, servers):
        await respond(proxy, **fields)
        name = next(name for server in servers for name in server.kept)
        owner(servers, name).end(name)
        await proxy.settled()
        assert (await respond(proxy, previous_response_id=name)).status == 200
        await proxy.settled()


async def test_what_is_not_to_be_kept_is_not_known() -> None:
    async with two() as (proxy, _):
        name = (await respond(proxy, store=False)).json()["id"]
        assert (await respond(proxy, previous_response_id=name)).status == 404


async def test_what_its_server_has_forgotten_is_the_servers_to_refuse() -> None:
    async with two() as (proxy, servers):
        name = (await respond(proxy)).json()["id"]
        owner(servers, name).kept.clear()
        reply = await respond(proxy, previous_response_id=name)
        assert (reply.status, reply.json()["error"]["message"]) == (404, "not found")
        await proxy.settled()


async def test_a_server_that_was_taken_away_has_taken_its_responses_along() -> None:
    async with two() as (proxy, servers):
        name = (await respond(proxy)).json()["id"]
        gone = "b0" if name in servers[0].kept else "b1"
        specs = [spec for spec in proxy.app.settings.backend_specs() if spec.name != gone]
        await proxy.app.fleet.change(specs)
        reply = await respond(proxy, previous_response_id=name)
        error = reply.json()["error"]
        assert (reply.status, error["code"]) == (404, "response_not_found")
        assert "gone" in error["message"]
        assert "127.0.0.1" not in error["message"]


async def test_while_its_server_is_down_a_turn_may_come_back_later() -> None:
    async with two() as (proxy, servers):
        name = (await respond(proxy)).json()["id"]
        pool = "b0" if name in servers[0].kept else "b1"
        proxy.app.gate.pool_down(pool, "test")
        reply = await respond(proxy, previous_response_id=name)
        assert (reply.status, reply.json()["error"]["code"]) == (503, "no_backend")


async def test_a_tenant_reaches_its_own_responses_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[tenants.a]\nkeys = ["sk-a"]\n[tenants.b]\nkeys = ["sk-b"]\n')
    async with two(api_keys_file=keys) as (proxy, servers):
        mine, others = [("authorization", "Bearer sk-a")], [("authorization", "Bearer sk-b")]
        name = (await respond(proxy, mine, background=True)).json()["id"]
        for path, method in ((f"{RESPONSES}/{name}", "GET"), (f"{RESPONSES}/{name}/cancel", "POST")):
            assert (await proxy.ask(None, path, method=method, headers=others)).status == 404
            assert (await proxy.ask(None, path, method=method)).status == 401
        assert (await respond(proxy, others, previous_response_id=name)).status == 404
        assert owner(servers, name).kept[name] == "queued"
        assert (await proxy.get(f"{RESPONSES}/{name}", mine)).status == 200
        assert (await proxy.ask(None, f"{RESPONSES}/{name}/cancel", headers=mine)).status == 200
        await proxy.settled()
