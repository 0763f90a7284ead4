"""The proxy's own endpoints: what operators, probes and scrapers see."""

import asyncio
import base64
import json
from typing import Any

import pytest

from proxy.backend_spec import BackendSpec
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, ask, chat
from tests.waiting import eventually

ADMIN = ("/metrics", "/admission/status", "/admission/explain?tokens=5", "/admission/live")
NOWHERE = BackendSpec("http://127.0.0.1:1", "nowhere")


async def explained(proxy: Running, query: str, **fields: Any) -> dict[str, Any]:
    reply = await proxy.get(f"/admission/explain?{query}", **fields)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json()
    return answer


# --- probes ---------------------------------------------------------------------------------------


async def test_a_proxy_with_a_backend_is_alive_ready_and_healthy(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        assert (await proxy.get("/livez")).json() == {"status": "alive"}
        assert (await proxy.get("/ready")).json() == {"status": "ready", "missing": []}
        assert (await proxy.get("/health")).json() == {"status": "ok", "up": ["b0"], "down": {}}


async def test_without_one_it_is_alive_and_says_what_is_missing() -> None:
    async with proxy_before(NOWHERE, wait=False) as proxy:
        await eventually(lambda: bool(proxy.app.gate.down_reasons))
        assert (await proxy.get("/livez")).status == 200
        ready = await proxy.get("/ready")
        assert ready.status == 503
        assert ready.json()["missing"] == ["no backend has reported a pool yet"]
        health = await proxy.get("/health")
        assert health.status == 503
        assert list(health.json()["down"]) == ["nowhere"]


async def test_a_backend_that_went_away_is_no_reason_to_restart_the_proxy(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        await fake.stop()
        await eventually(lambda: not proxy.app.gate.controller.lines["b0"].pool.up)
        assert (await proxy.get("/livez")).status == 200
        assert (await proxy.get("/ready")).status == 200
        assert (await proxy.get("/health")).status == 503


# --- metrics and status ---------------------------------------------------------------------------


async def test_metrics_tell_what_was_done(fake: FakeServer) -> None:
    async with proxy_before(fake) as proxy:
        await proxy.ask(chat())
        await proxy.ask(b"nonsense")
        text = (await proxy.get("/metrics")).body.decode()
    for line in (
        'sglang_proxy_requests_total{lane="short",outcome="completed"} 1.0',
        'sglang_proxy_requests_total{lane="none",outcome="invalid"} 1.0',
        'sglang_proxy_pool_tokens{backend="b0"} 186624.0',
        'sglang_proxy_backend_up{backend="b0"} 1.0',
        'sglang_proxy_committed_tokens{backend="b0",lane="short"} 0.0',
        'sglang_proxy_queue_requests{lane="short",model="tiny"} 0.0',
        'sglang_proxy_completion_tokens_total{lane="short"} 8.0',
    ):
        assert line in text.splitlines()


async def test_status_shows_pools_ledgers_queue_and_residents(fake: FakeServer) -> None:
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        asked = [asyncio.create_task(proxy.ask(ids(15_000), COMPLETIONS)) for _ in range(2)]
        await eventually(lambda: len(proxy.app.gate.controller.lines["b0"]) == 1)
        status = (await proxy.get("/admission/status")).json()
        (pool,) = status["pools"]
        assert status["open_requests"] == 2
        assert status["draining"] is False
        assert pool["committed_total_tokens"] > 15_000
        assert [resident["prompt_tokens"] for resident in pool["resident_contexts"]] == [15_000]
        assert [waiting["prompt_tokens"] for waiting in pool["queue"]] == [15_000]
        assert pool["server"]["used_tokens"] == 0
        assert status["counting"]["ready"] is True
        held.go.set()
        await asyncio.gather(*asked)
        await proxy.settled()
        (pool,) = (await proxy.get("/admission/status")).json()["pools"]
        assert (pool["committed_total_tokens"], pool["resident_contexts"], pool["queue"]) == (0, [], [])


async def test_no_prompt_is_shown_anywhere(fake: FakeServer) -> None:
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        asked = asyncio.create_task(proxy.ask(chat("my-secret-prompt")))
        await eventually(lambda: held.running == 1)
        for path in ADMIN:
            assert b"my-secret-prompt" not in (await proxy.get(path)).body
        held.go.set()
        await asked


# --- explain --------------------------------------------------------------------------------------


async def test_explain_walks_the_decision_and_admits_nothing(fake: FakeServer) -> None:
    fake.pool_tokens = 20_000
    held = Held(fake)
    fake.answer = held
    async with proxy_before(fake) as proxy:
        assert (await explained(proxy, "tokens=15000&max_tokens=100"))["decision"] == "admit"
        first = asyncio.create_task(proxy.ask(ids(15_000), COMPLETIONS))
        await eventually(lambda: held.running == 1)
        queued = await explained(proxy, "tokens=15000&max_tokens=100")
        assert (queued["decision"], queued["queue_position"]) == ("queue", 0)
        assert queued["predicted_wait_seconds"] > 0
        assert queued["in_the_way"]
        hurried = await explained(proxy, "tokens=15000", headers=[("x-request-timeout-ms", "1")])
        assert (hurried["decision"], hurried["reason"]) == ("refuse", "would_miss_deadline")
        never = await explained(proxy, "tokens=25000")
        assert (never["decision"], never["reason"]) == ("refuse", "context_length_exceeded")
        assert len(proxy.app.gate.controller.jobs) == 1
        held.go.set()
        await first
        await proxy.settled()


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"model": "t", "prompt": [1, 2, 3]}, 3),
        ({"input_ids": [1, 2, 3, 4]}, 4),
        (chat("hello"), None),
    ],
)
async def test_explain_counts_a_real_body(fake: FakeServer, body: dict[str, Any], tokens: int | None) -> None:
    async with proxy_before(fake) as proxy:
        reply = await proxy.ask(body, "/admission/explain")
        assert reply.status == 200
        assert reply.json()["decision"] == "admit"
        if tokens is not None:
            assert reply.json()["prompt_tokens"] == tokens
        assert fake.posts() == []
        assert proxy.ledger()["jobs"] == 0


@pytest.mark.parametrize(
    "query",
    ["", "tokens=", "tokens=-5", "tokens=x", "tokens=1e3", "tokens=9999999999999", "tokens=5&max_tokens=a"],
)
async def test_explain_says_what_it_needs(fake: FakeServer, query: str) -> None:
    async with proxy_before(fake) as proxy:
        reply = await proxy.get(f"/admission/explain?{query}")
        assert reply.status == 400
        assert reply.json()["error"]["param"] in ("tokens", "max_tokens")
        assert (await proxy.ask(b"nonsense", "/admission/explain")).status == 400


async def test_explain_without_a_backend_or_while_draining_says_so(fake: FakeServer) -> None:
    async with proxy_before(NOWHERE, wait=False) as proxy:
        assert (await explained(proxy, "tokens=5"))["reason"] == "no_backend"
    async with proxy_before(fake) as proxy:
        proxy.app.gate.drain()
        assert (await explained(proxy, "tokens=5"))["reason"] == "draining"


# --- who may see it -------------------------------------------------------------------------------


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer s3cre")],
        [("authorization", "s3cret")],
        [("authorization", basic("any:wrong"))],
        [("authorization", "Basic !!!")],
        [("x-admin-key", "s3cret\u00e9")],
        [("x-api-key", "s3cret")],
    ],
)
async def test_without_the_admin_key_admission_is_closed(
    fake: FakeServer, headers: list[tuple[str, str]]
) -> None:
    async with proxy_before(fake, admin_key="s3cret") as proxy:
        for path in ("/admission/status", "/admission/explain?tokens=5", "/admission/live"):
            reply = await proxy.get(path, headers)
            assert reply.status == 401
            assert reply.json()["error"]["type"] == "authentication_error"
            assert b"s3cret" not in reply.body
        assert (await proxy.ask(chat(), "/admission/explain", headers=headers)).status == 401
        for path in ("/metrics", "/livez", "/ready", "/health"):
            assert (await proxy.get(path, headers)).status == 200
        assert (await proxy.ask(chat(), headers=headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer s3cret")],
        [("authorization", "bearer  s3cret ")],
        [("authorization", basic("any:s3cret"))],
        [("x-admin-key", "s3cret")],
    ],
)
async def test_with_it_it_is_open(fake: FakeServer, headers: list[tuple[str, str]]) -> None:
    async with proxy_before(fake, admin_key="s3cret") as proxy:
        assert (await proxy.get("/admission/status", headers)).status == 200


async def test_an_address_of_its_own_takes_the_operators_endpoints_off_the_clients_port(
    fake: FakeServer,
) -> None:
    async with proxy_before(fake, admin_port=0) as proxy:
        assert proxy.admin_port != proxy.port
        for path in ADMIN:
            assert (await proxy.get(path)).status == 404
            assert (await ask(proxy.admin_port, None, path, method="GET")).status == 200
        for path in ("/livez", "/ready", "/health"):
            assert (await proxy.get(path)).status == 200
            assert (await ask(proxy.admin_port, None, path, method="GET")).status == 200
        assert (await ask(proxy.admin_port, chat(), CHAT)).status == 404
        assert (await ask(proxy.admin_port, None, "/v1/models", method="GET")).status == 404
        assert fake.posts() == []


async def test_names_that_clients_make_up_do_not_break_a_scrape(fake: FakeServer) -> None:
    async with proxy_before(fake, tenant_header="x-tenant") as proxy:
        for number in range(70):
            odd = f'"}}\\ {number}\u00ff' + "x" * (number * 5)
            body = json.dumps(chat(model=f"m\n{number}")).encode()
            assert (await proxy.ask(body, headers=[("x-tenant", odd)])).status == 200
        text = (await proxy.get("/metrics")).body.decode()
        tenants = {
            line for line in text.splitlines() if line.startswith("sglang_proxy_tenant_requests_total")
        }
        assert 10 < len(tenants) <= 51
        assert all(line.isprintable() for line in text.splitlines())
        await proxy.settled()
