"""Headers: what goes on, what never does, and heads that are too large or do not come."""

import asyncio

import pytest

from proxy.api import connection as connection_module
from tests.fakes import FakeServer, Received, Wire, short_stream
from tests.proxies import Running, proxy_before
from tests.raw_http import Connection, chat, request

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_headers_that_steer_the_engine_never_reach_it(server: FakeServer, proxy: Running) -> None:
    steering = [
        ("X-Override-Rid", "a"),
        ("x-override-priority", "1"),
        ("X-Data-Parallel-Rank", "3"),
        ("x-sglang-anything", "1"),
        ("x-bootstrap-host", "evil"),
        ("x-admission-lane", "short"),
        ("authorization", "Bearer client"),
        ("x-api-key", "client"),
        ("te", "trailers"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-kept", "1"),
    ]
    await proxy.ask(chat(), headers=steering)
    await proxy.ask(chat(), "/tokenize", headers=steering)
    for sent in server.posts():
        assert sent.headers["x-kept"] == "1"
        names = {name.lower() for name, _ in steering} - {"x-kept", "connection"}
        assert names.isdisjoint(sent.headers)


async def test_a_clients_key_goes_on_only_where_that_is_wanted(server: FakeServer) -> None:
    async with proxy_before(server, forward_authorization=True) as proxy:
        await proxy.ask(chat(), headers=[("authorization", "Bearer client")])
    assert server.posts()[0].headers["authorization"] == "Bearer client"


@pytest.mark.parametrize(
    "value", ["a\tb", "x" * 500, "caf\u00e9", "", "a b", "\u00ff\u00fe", '"><script>', "${jndi:ldap://x}"]
)
async def test_whatever_a_request_is_called_the_answers_name_is_clean(proxy: Running, value: str) -> None:
    reply = await proxy.ask(chat(), headers=[("x-request-id", value)])
    assert reply.status == 200
    name = reply.header("x-request-id")
    assert name is not None
    assert name.isascii()
    assert name.isprintable()
    assert 0 < len(name) <= 128


@pytest.mark.parametrize("injected", ["a\r\nx-evil: 1", "a\nx-evil: 1", "a\rx-evil: 1", "a\x00b"])
async def test_no_header_can_be_injected_through_a_name(
    server: FakeServer, proxy: Running, injected: str
) -> None:
    reply = await proxy.ask(chat(), headers=[("x-request-id", injected), ("x-kept", injected)])
    assert reply.header("x-evil") is None
    assert reply.status in (200, 400)
    assert not [r for r in server.posts() if "\r" in r.headers.get("x-kept", "")]


async def test_duplicate_headers_do_no_harm(server: FakeServer, proxy: Running) -> None:
    doubled = [
        (name, str(n)) for n in (5000, 1) for name in ("x-request-id", "x-request-timeout-ms", "accept")
    ]
    assert (await proxy.ask(chat(), headers=doubled)).header("x-request-id") == "5000"
    assert (await proxy.ask(chat(), headers=[("content-length", "5")])).status == 400
    assert (await proxy.ask(chat(), headers=[("transfer-encoding", "chunked")])).status == 400
    assert len(server.posts()) == 1


@pytest.mark.parametrize("host", ["", "[", "[::1", "a b", "evil.test:99999999", "\u00ff", "/../", "a" * 5000])
@pytest.mark.parametrize("path", ["/nowhere", "/livez/", "/livez", "/admission/explain", "/v1/models"])
async def test_an_odd_host_changes_nothing(proxy: Running, host: str, path: str) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode("latin-1"))
        assert (await connection.reply()).status in (200, 400, 404)


async def test_a_head_too_large_is_refused_and_not_collected(proxy: Running) -> None:
    async def send_headers(connection: Connection) -> None:
        await connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n")
        for number in range(2000):
            await connection.send(b"x-h%d: " % number + b"x" * 4000 + b"\r\n")
            await asyncio.sleep(0)

    async with await Connection.open(proxy.port) as connection:
        with pytest.raises(ConnectionError):
            await send_headers(connection)
    async with await Connection.open(proxy.port) as connection:
        await connection.send(b"GET /" + b"x" * 70_000)
        assert (await connection.reply()).status == 431
        assert await connection.closed()


async def test_many_headers_within_the_limit_are_fine(proxy: Running) -> None:
    assert (await proxy.ask(chat(), headers=[(f"x-{n}", "v" * 20) for n in range(500)])).status == 200


async def test_a_head_that_does_not_come_is_not_waited_for(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_SECONDS", 0.1)
    for begun in (b"", b"POST /v1/chat", b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"):
        async with await Connection.open(proxy.port) as connection:
            await connection.send(begun)
            assert await connection.closed(2.0), begun
    async with await Connection.open(proxy.port) as connection:
        await connection.send(request(chat()))
        assert (await connection.reply()).status == 200
        await connection.send(b"POST /v1")
        assert await connection.closed(2.0)


async def test_a_slow_answer_is_not_taken_for_a_slow_head(
    server: FakeServer, proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_SECONDS", 0.1)

    async def answer(request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.4)
        await short_stream(request, wire)

    server.answer = answer
    assert (await proxy.ask(chat(stream=True))).whole
