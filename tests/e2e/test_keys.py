"""Keys and tenants, as clients meet them."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from proxy.app import App
from proxy.settings import Settings, SettingsError
from tests.e2e.holding import COMPLETIONS, Held, ids
from tests.fakes import FakeServer
from tests.proxies import Running, proxy_before
from tests.raw_http import Reply, chat
from tests.waiting import eventually

MESSAGES = "/v1/messages"
KEY, OTHER = "sk-research", "sk-others"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(
        f"[tenants.research]\nkeys = ['{KEY}']\nconcurrent_requests = 1\n\n"
        f"[tenants.others]\nkeys = ['{OTHER}']\n"
    )
    return path


def bearer(key: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {key}")]


def error_of(reply: Reply) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    return error


async def test_without_a_known_key_there_is_a_401_in_the_shape_of_the_api(
    fake: FakeServer, keys_file: Path
) -> None:
    body = {"model": "tiny", "max_tokens": 5, "messages": chat()["messages"]}
    async with proxy_before(fake, api_keys_file=keys_file) as proxy:
        for headers in ([], bearer("sk-wrong"), [("x-api-key", "")], [("x-tenant", "research")]):
            openai = await proxy.ask(chat(), headers=headers)
            assert (openai.status, error_of(openai)["code"]) == (401, "invalid_api_key")
            assert openai.header("x-request-id")
            anthropic = await proxy.ask(body, MESSAGES, headers=headers)
            assert anthropic.status == 401
            assert anthropic.json()["type"] == "error"
            assert error_of(anthropic)["type"] == "authentication_error"
            assert (await proxy.get("/v1/models", headers)).status == 401
        assert fake.posts() == []
        assert proxy.metric("requests_total", lane="none", outcome="invalid") == 8
        assert proxy.metric("tenant_requests_total", tenant="default", outcome="invalid") == 0


async def test_either_header_opens_and_health_needs_none(fake: FakeServer, keys_file: Path) -> None:
    async with proxy_before(fake, api_keys_file=keys_file) as proxy:
        assert (await proxy.ask(chat(), headers=bearer(KEY))).status == 200
        assert (await proxy.ask(chat(), headers=[("x-api-key", OTHER)])).status == 200
        assert (await proxy.get("/v1/models", bearer(KEY))).status == 200
        assert (await proxy.get("/livez")).status == 200
        assert (await proxy.get("/ready")).status == 200
        assert proxy.metric("tenant_requests_total", tenant="research", outcome="completed") == 1
        assert proxy.metric("tenant_requests_total", tenant="others", outcome="completed") == 1


@pytest.mark.parametrize("forward", [False, True])
async def test_a_clients_key_reaches_the_server_only_where_that_is_set(
    fake: FakeServer, keys_file: Path, forward: bool
) -> None:
    async with proxy_before(fake, api_keys_file=keys_file, forward_authorization=forward) as proxy:
        headers = [("x-api-key", KEY), *bearer("for-the-server")]
        assert (await proxy.ask(chat(), headers=headers)).status == 200
    (post,) = fake.posts()
    assert "x-api-key" not in post.headers
    assert post.headers.get("authorization") == ("Bearer for-the-server" if forward else None)


async def test_a_tenant_over_its_limit_hears_which_and_the_others_go_on(
    fake: FakeServer, keys_file: Path
) -> None:
    held = fake.answer = Held()
    async with proxy_before(fake, api_keys_file=keys_file) as proxy:
        first = asyncio.create_task(proxy.ask(ids(100, stream=True), COMPLETIONS, headers=bearer(KEY)))
        await eventually(lambda: held.running == 1)
        refused = await proxy.ask(ids(100), COMPLETIONS, headers=bearer(KEY))
        check_limit(refused)
        others = asyncio.create_task(proxy.ask(ids(100), COMPLETIONS, headers=bearer(OTHER)))
        await eventually(lambda: held.running == 2)
        held.go.set()
        assert (await first).status == (await others).status == 200
        assert (await proxy.ask(ids(100), COMPLETIONS, headers=bearer(KEY))).status == 200
        await proxy.settled()
        assert proxy.metric("refusals_total", reason="tenant_limit") == 1


def check_limit(reply: Reply) -> None:
    error = error_of(reply)
    assert reply.status == 429
    assert reply.header("x-admission-reason") == error["code"] == "tenant_limit"
    assert (error["limit"], error["limit_value"], error["limit_used"]) == ("concurrent_requests", 1, 1)
    assert 1 <= int(reply.header("retry-after") or "0") <= 60


async def test_neither_keys_nor_what_was_guessed_is_logged(
    fake: FakeServer, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with proxy_before(fake, api_keys_file=keys_file) as proxy:
        await proxy.ask(chat(), headers=bearer(KEY))
        await proxy.ask(chat(), headers=bearer("sk-guessed"))
    assert KEY not in caplog.text
    assert "sk-guessed" not in caplog.text


async def test_an_open_proxy_says_so_once(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with proxy_before(fake) as proxy:
        assert await answered(proxy, 3)
    assert caplog.text.count("PROXY_API_KEYS_FILE is not set") == 1


async def answered(proxy: Running, count: int) -> bool:
    return all([(await proxy.ask(chat())).status == 200 for _ in range(count)])


async def test_a_keys_file_that_is_wrong_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("[tenants.a]\nkeys = []")
    with pytest.raises(SettingsError, match=r"PROXY_API_KEYS_FILE=.*tenant a: keys must be a list"):
        App(Settings(api_keys_file=path))
