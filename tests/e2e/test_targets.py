"""Methods and targets: which exist, by any spelling."""

import pytest

from proxy.api.paths import INFERENCE
from tests.fakes import FakeServer
from tests.proxies import Running
from tests.raw_http import CHAT, chat

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("path", INFERENCE)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_inference_takes_post_only(server: FakeServer, proxy: Running, method: str, path: str) -> None:
    reply = await proxy.ask(None, path, method=method)
    assert reply.status == 405
    assert reply.header("allow") == "POST"
    if method != "HEAD":
        assert reply.json()["error"]["message"] == f"{path} does not take {method}"
        assert (reply.json().get("type") == "error") == path.startswith("/v1/messages")
    assert server.posts() == []


async def test_reads_take_their_own_method_only(proxy: Running) -> None:
    assert (await proxy.ask(chat(), "/v1/models")).header("allow") == "GET"
    assert (await proxy.ask(None, "/v1/models/tiny", method="HEAD")).status == 405
    assert (await proxy.get("/tokenize")).header("allow") == "POST"


@pytest.mark.parametrize("path", ["/livez", "/ready", "/health", "/metrics", "/admission/status"])
async def test_the_proxys_own_endpoints_answer_get_and_head(proxy: Running, path: str) -> None:
    assert (await proxy.get(path)).status == 200
    head = await proxy.ask(None, path, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert (await proxy.ask(chat(), path)).status == 405


MANAGEMENT = (
    "/abort_request",
    "/flush_cache",
    "/server_info",
    "/get_server_info",
    "/update_weights_from_disk",
    "/init_weights_update_group",
    "/get_weights_by_name",
    "/release_memory_occupation",
    "/pause_generation",
    "/open_session",
    "/start_profile",
    "/load_lora_adapter",
    "/set_internal_state",
    "/configure_logging",
    "/v1/loads",
    "/get_load",
    "/health_generate",
    "/docs",
    "/openapi.json",
    "/",
    "/v1",
    "/v1/models/../../flush_cache",
    "/v1/models/%2e%2e/%2e%2e/flush_cache",
    "/v1/models/..%2f..%2fserver_info",
    "/v1/models/%2e%2e%5c..",
    "/v1/chat/completions/../../../flush_cache",
    "//flush_cache",
    "/%66lush_cache",
    "/v1/models/x%00",
    "/v1/models/x%3fy",
    "/v1/models/x%23y",
    "/v1/models/x%0d%0ay",
    "*",
)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_no_management_path_is_there_by_any_spelling(
    server: FakeServer, proxy: Running, method: str
) -> None:
    asked_before = len(server.requests)
    for path in MANAGEMENT:
        reply = await proxy.ask(b"{}" if method == "POST" else None, path, method=method)
        assert reply.status in (400, 404), path
        if reply.status == 404:
            assert reply.json()["error"]["type"] == "not_found_error"
    reached = {r.target for r in server.requests[asked_before:]} - {"/v1/loads?include=core"}
    assert reached == set()


@pytest.mark.parametrize(
    "path", [CHAT + "/", "/v1/models/", "/livez/", "/V1/chat/completions", "/v1//models"]
)
async def test_a_path_nearly_right_is_not_found_and_nobody_is_sent_elsewhere(
    proxy: Running, path: str
) -> None:
    reply = await proxy.ask(None, path, method="GET", headers=[("host", "evil.test")])
    assert reply.status in (400, 404)
    assert reply.header("location") is None


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat%2fcompletions",
        "/v1/%63hat/completions",
        "http://other.test/v1/chat/completions",
        CHAT + "?a=b",
    ],
)
async def test_other_spellings_of_a_path_are_the_path(
    server: FakeServer, proxy: Running, target: str
) -> None:
    assert (await proxy.ask(chat(), target)).status == 200
    assert server.posts()[0].target.partition("?")[0] == CHAT


async def test_models_are_read_from_the_server(server: FakeServer, proxy: Running) -> None:
    reply = await proxy.get("/v1/models")
    assert reply.status == 200
    assert reply.json()["data"][0]["id"] == "tiny"
    assert reply.header("x-request-id")
    assert (await proxy.get("/v1/models/org/tiny?x=1")).status == 404  # the server's own answer
    assert server.requests[-1].target == "/v1/models/org/tiny?x=1"


@pytest.mark.parametrize("query", ["x" * 70_000, "a=\x7f", "a=%00%0d%0a"])
async def test_a_target_that_cannot_be_forwarded_is_the_clients_mistake(proxy: Running, query: str) -> None:
    for path, method, body in ((CHAT, "POST", chat()), ("/v1/models", "GET", None)):
        reply = await proxy.ask(body, f"{path}?{query}", method=method)
        assert reply.status in (200, 400, 414, 431)
