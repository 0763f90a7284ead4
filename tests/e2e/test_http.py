"""The corners of HTTP/1.1: methods, targets, framing, headers, connections."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from proxy.api import connection as connection_module
from proxy.api.paths import INFERENCE
from tests.fakes import FakeServer, Received, Wire, chat_stream
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Connection, chat, request
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def both() -> AsyncIterator[tuple[FakeServer, Running]]:
    """One server and one proxy for all tests here: each leaves them as it found them."""
    server = await FakeServer().start()
    async with proxy_before(server) as running:
        yield server, running
    await eventually(lambda: not server.open)
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def fake(both: tuple[FakeServer, Running]) -> FakeServer:
    server, _ = both
    server.requests.clear()
    server.answer = None
    return server


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(fake: FakeServer, both: tuple[FakeServer, Running]) -> AsyncIterator[Running]:
    """After each test the proxy still serves, and owes nothing."""
    _, running = both
    yield running
    fake.answer = None
    await running.settled()
    assert (await running.ask(chat())).status == 200
    await running.settled()


async def stream(_: Received, wire: Wire) -> None:
    """Answers any request with a short stream."""
    await wire.begin()
    for chunk in chat_stream(2):
        await wire.chunk(chunk)
    await wire.end()


# --- methods and targets --------------------------------------------------------------------------


@pytest.mark.parametrize("path", INFERENCE)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_inference_takes_post_only(fake: FakeServer, proxy: Running, method: str, path: str) -> None:
    reply = await proxy.ask(None, path, method=method)
    assert reply.status == 405
    assert reply.header("allow") == "POST"
    if method != "HEAD":
        assert reply.json()["error"]["message"] == f"{path} does not take {method}"
        assert (reply.json().get("type") == "error") == path.startswith("/v1/messages")
    assert fake.posts() == []


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
    fake: FakeServer, proxy: Running, method: str
) -> None:
    asked_before = len(fake.requests)
    for path in MANAGEMENT:
        reply = await proxy.ask(b"{}" if method == "POST" else None, path, method=method)
        assert reply.status in (400, 404), path
        if reply.status == 404:
            assert reply.json()["error"]["type"] == "not_found_error"
    reached = {r.target for r in fake.requests[asked_before:]} - {"/v1/loads?include=core"}
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
async def test_other_spellings_of_a_path_are_the_path(fake: FakeServer, proxy: Running, target: str) -> None:
    assert (await proxy.ask(chat(), target)).status == 200
    assert fake.posts()[0].target.partition("?")[0] == CHAT


async def test_models_are_read_from_the_server(fake: FakeServer, proxy: Running) -> None:
    reply = await proxy.get("/v1/models")
    assert reply.status == 200
    assert reply.json()["data"][0]["id"] == "tiny"
    assert reply.header("x-request-id")
    assert (await proxy.get("/v1/models/org/tiny?x=1")).status == 404  # the server's own answer
    assert fake.requests[-1].target == "/v1/models/org/tiny?x=1"


@pytest.mark.parametrize("query", ["x" * 70_000, "a=\x7f", "a=%00%0d%0a"])
async def test_a_target_that_cannot_be_forwarded_is_the_clients_mistake(proxy: Running, query: str) -> None:
    for path, method, body in ((CHAT, "POST", chat()), ("/v1/models", "GET", None)):
        reply = await proxy.ask(body, f"{path}?{query}", method=method)
        assert reply.status in (200, 400, 414, 431)


# --- headers --------------------------------------------------------------------------------------


async def test_headers_that_steer_the_engine_never_reach_it(fake: FakeServer, proxy: Running) -> None:
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
    for sent in fake.posts():
        assert sent.headers["x-kept"] == "1"
        names = {name.lower() for name, _ in steering} - {"x-kept", "connection"}
        assert names.isdisjoint(sent.headers)


async def test_a_clients_key_goes_on_only_where_that_is_wanted(fake: FakeServer) -> None:
    async with proxy_before(fake, forward_authorization=True) as proxy:
        await proxy.ask(chat(), headers=[("authorization", "Bearer client")])
    assert fake.posts()[0].headers["authorization"] == "Bearer client"


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
    fake: FakeServer, proxy: Running, injected: str
) -> None:
    reply = await proxy.ask(chat(), headers=[("x-request-id", injected), ("x-kept", injected)])
    assert reply.header("x-evil") is None
    assert reply.status in (200, 400)
    assert not [r for r in fake.posts() if "\r" in r.headers.get("x-kept", "")]


async def test_duplicate_headers_do_no_harm(fake: FakeServer, proxy: Running) -> None:
    doubled = [
        (name, str(n)) for n in (5000, 1) for name in ("x-request-id", "x-request-timeout-ms", "accept")
    ]
    assert (await proxy.ask(chat(), headers=doubled)).header("x-request-id") == "5000"
    assert (await proxy.ask(chat(), headers=[("content-length", "5")])).status == 400
    assert (await proxy.ask(chat(), headers=[("transfer-encoding", "chunked")])).status == 400
    assert len(fake.posts()) == 1


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
    fake: FakeServer, proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_SECONDS", 0.1)

    async def answer(request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.4)
        await stream(request, wire)

    fake.answer = answer
    assert (await proxy.ask(chat(stream=True))).whole


CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


# --- framing and connections ----------------------------------------------------------------------


async def test_a_chunked_request_is_a_request(fake: FakeServer, proxy: Running) -> None:
    body = request(chat()).partition(b"\r\n\r\n")[2]
    async with await Connection.open(proxy.port) as connection:
        await connection.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for start in range(0, len(body), 7):
            piece = body[start : start + 7]
            await connection.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        await connection.send(b"0\r\nx-trailer: 1\r\n\r\n")
        assert (await connection.reply()).status == 200
    sent = fake.posts()[0]
    assert sent.body.startswith(body[:-1])
    assert "x-trailer" not in sent.headers


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"3\r\nabcd\r\n", b"3\nabc\n0\n\n"],
)
async def test_bad_chunks_are_refused(fake: FakeServer, proxy: Running, chunks: bytes) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(CHUNKED + chunks)
        assert (await connection.reply()).status == 400
        assert await connection.closed()
    assert fake.posts() == []


async def test_who_expects_100_continue_gets_it_or_the_refusal(proxy: Running) -> None:
    whole = request(chat(), headers=[("expect", "100-continue")])
    head, _, body = whole.partition(b"\r\n\r\n")
    async with await Connection.open(proxy.port) as connection:
        await connection.send(head + b"\r\n\r\n")
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await connection.send(body)
        assert (await connection.reply()).status == 200
    async with await Connection.open(proxy.port) as connection:
        large = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n"
        await connection.send(large + b"expect: 100-continue\r\n\r\n")
        first = await connection.reader.readuntil(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 413 ")


async def test_a_connection_serves_one_request_after_the_other(fake: FakeServer, proxy: Running) -> None:
    fake.answer = stream
    async with await Connection.open(proxy.port) as connection:
        for number in range(20):
            if number % 3 == 2:
                await connection.send(request(b"nonsense"))
                assert (await connection.reply()).status == 400
            else:
                await connection.send(request(chat(stream=True)))
                assert (await connection.reply()).body == b"".join(chat_stream(2))
    assert len({r.connection for r in fake.posts()}) <= 3  # of those that polls use


async def test_pipelined_requests_are_answered_in_order(fake: FakeServer, proxy: Running) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(
            b"".join(request(chat(), headers=[("x-request-id", f"p{n}")]) for n in range(10))
        )
        names = [(await connection.reply()).header("x-request-id") for _ in range(10)]
    assert names == [f"p{n}" for n in range(10)]
    assert len(fake.posts()) == 10


async def test_who_pipelines_and_leaves_leaves_nothing_behind(fake: FakeServer, proxy: Running) -> None:
    fake.answer = stream
    for reset in (False, True):
        connection = await Connection.open(proxy.port)
        await connection.send(request(chat(stream=True)) * 5)
        await connection.reader.read(10)
        connection.leave(reset=reset)
    await proxy.settled()


async def test_http_1_0_is_answered_and_closed(proxy: Running) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(request(chat()).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        reply = await connection.reply()
        assert reply.status == 200
        assert reply.header("connection") == "close"
        assert await connection.closed()


@pytest.mark.parametrize("wanted", ["websocket", "h2c"])
async def test_an_upgrade_is_not_offered_and_the_request_is_served(proxy: Running, wanted: str) -> None:
    upgrade = [("connection", "Upgrade"), ("upgrade", wanted)]
    reply = await proxy.get("/livez", headers=upgrade)
    assert reply.status == 200
    assert (await proxy.ask(chat(), headers=upgrade)).status == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS to a plain port
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5, 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n: no name\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x00" * 1000,
    ],
)
async def test_what_is_not_http_is_shown_the_door(proxy: Running, garbage: bytes) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(garbage)
        assert await connection.closed(3.0)


async def test_trailers_are_no_way_around_the_limits(fake: FakeServer, proxy: Running) -> None:
    body = request(chat()).partition(b"\r\n\r\n")[2]

    async def send_trailers(connection: Connection) -> None:
        await connection.send(CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(body), body))
        for number in range(2000):
            await connection.send(b"x-t%d: " % number + b"x" * 4000 + b"\r\n")
            await asyncio.sleep(0)

    async with await Connection.open(proxy.port) as connection:
        with pytest.raises(ConnectionError):
            await send_trailers(connection)
    assert fake.posts() == []


async def test_bytes_that_begin_no_request_do_not_keep_an_idle_connection_open(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Connection.open(proxy.port) as connection:
        await connection.send(request(chat()))
        await connection.reply()
        (protocol,) = proxy.connections()
        monkeypatch.setattr(protocol, "timeout_keep_alive", 0.1)
        await connection.send(b"\r\n")
        assert await connection.closed(2.0)
    await eventually(lambda: not proxy.connections())
