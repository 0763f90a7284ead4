"""Ids of responses in a path: whatever a client writes there leads to its own responses, or nowhere."""

import pytest

from tests.fakes import FakeServer
from tests.proxies import Running
from tests.raw_http import ask

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESPONSES = "/v1/responses"
NOBODYS = "resp_" + "0" * 32


@pytest.mark.parametrize("action", ["", "/cancel"])
@pytest.mark.parametrize(
    "name",
    [
        NOBODYS,
        "resp_1",
        "nonsense",
        NOBODYS + "x" * 5000,
        NOBODYS[:-1] + "G",
        NOBODYS.upper(),
        "resp_%2e%2e",
        "..%2f..%2fflush_cache",
        "../../flush_cache",
        NOBODYS + "%2fcancel%2fcancel",
        NOBODYS + "%0d%0ax-a:%20b",
        NOBODYS + "%23",
        NOBODYS + "%3fa=b",
        "%00",
        "a/b",
        "",
    ],
)
async def test_an_id_that_nobody_gave_leads_nowhere(
    server: FakeServer, proxy: Running, name: str, action: str
) -> None:
    reply = await ask(proxy.port, None, f"{RESPONSES}/{name}{action}", method="POST" if action else "GET")
    assert reply.status in (404, 405)
    assert set(reply.json()) == {"error"}
    assert [r for r in server.requests if "responses" in r.target or "flush" in r.target] == []


async def test_an_unknown_response_is_not_found_in_the_shape_of_the_api(
    server: FakeServer, proxy: Running
) -> None:
    error = (await proxy.get(f"{RESPONSES}/{NOBODYS}")).json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "response_not_found",
        "not_found_error",
        "response_id",
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", NOBODYS, "GET"),
        ("POST", NOBODYS, "GET"),
        ("GET", f"{NOBODYS}/cancel", "POST"),
        ("PUT", f"{NOBODYS}/cancel", "POST"),
    ],
)
async def test_other_methods_are_told_the_right_one(
    server: FakeServer, proxy: Running, method: str, path: str, allowed: str
) -> None:
    reply = await ask(proxy.port, None, f"{RESPONSES}/{path}", method=method)
    assert (reply.status, reply.header("allow")) == (405, allowed)


@pytest.mark.parametrize("previous", [NOBODYS, "resp_1", "", "../x", "x" * 100_000, "\x00", "\ud83d\ude00"])
async def test_nothing_goes_on_from_an_id_that_nobody_gave(
    server: FakeServer, proxy: Running, previous: str
) -> None:
    reply = await proxy.ask({"input": "And?", "previous_response_id": previous}, RESPONSES)
    error = reply.json()["error"]
    assert (reply.status, error["code"], error["param"]) == (
        404,
        "response_not_found",
        "previous_response_id",
    )
    assert server.posts() == []


@pytest.mark.parametrize("previous", [5, True, ["resp_1"], {"id": "resp_1"}])
async def test_an_id_is_a_string(server: FakeServer, proxy: Running, previous: object) -> None:
    reply = await proxy.ask({"input": "And?", "previous_response_id": previous}, RESPONSES)
    assert (reply.status, reply.json()["error"]["param"]) == (400, "previous_response_id")
