"""Whatever a client sends, it gets a clear 4xx in the shape of its API, and the proxy goes on."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from proxy.api import asgi
from tests.e2e.holding import COMPLETIONS
from tests.fakes import FakeServer
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Connection, Reply, chat, request
from tests.waiting import eventually

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
GENERATE = "/generate"


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


def check_bad(reply: Reply, status: int = 400) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert reply.status == status, reply.body
    assert reply.header("content-type") == "application/json"
    assert reply.header("x-request-id")
    assert reply.header("retry-after") is None
    assert set(error) == {"message", "type", "code", "param"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"nonsense",
        b'{"model": "tiny"',
        b"[]",
        b'"text"',
        b"null",
        b"17",
        b"\x00\x01\x02",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        json.dumps(chat()).encode("utf-16"),
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"a": NaN}',
        b"{}",
        b"{} {}",
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
async def test_what_is_no_request_of_that_api_is_a_400(
    fake: FakeServer, proxy: Running, path: str, body: bytes
) -> None:
    check_bad(await proxy.ask(body, path))
    assert fake.posts() == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": {"role": "user"}}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages[0]"),
        (CHAT, {"messages": [{"content": "no role"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 17}]}, "messages[0].content"),
        (CHAT, {"max_tokens": -1}, "max_tokens"),
        (CHAT, {"max_tokens": "many"}, "max_tokens"),
        (CHAT, {"max_tokens": [1]}, "max_tokens"),
        (CHAT, {"max_completion_tokens": -5}, "max_completion_tokens"),
        (CHAT, {"n": 0}, "n"),
        (CHAT, {"n": "two"}, "n"),
        (CHAT, {"stream": "perhaps"}, "stream"),
        (CHAT, {"stream_options": []}, "stream_options"),
        (CHAT, {"tools": {}}, "tools"),
        (CHAT, {"model": 5}, "model"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": {}}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1], []]}, "prompt[1]"),
        (GENERATE, {"text": None}, None),
    ],
)
async def test_wrong_types_name_the_field(
    fake: FakeServer, proxy: Running, path: str, fields: dict[str, Any], param: str | None
) -> None:
    error = check_bad(await proxy.ask({**chat(), **fields}, path))
    if param is not None:
        assert error["param"] == param
    assert fake.posts() == []


async def test_the_same_in_anthropics_shape(proxy: Running) -> None:
    for body in (b"nonsense", json.dumps({"model": "m", "max_tokens": -1, "messages": []}).encode()):
        reply = await proxy.ask(body, MESSAGES)
        assert reply.status == 400
        assert reply.json()["type"] == "error"
        assert set(reply.json()["error"]) == {"type", "message"}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": 100_000},
        {"n": 4},
        {"unknown_field": {"a": [1, 2]}},
        {"temperature": 1e308},
        {"model": "\x00\n\u202e \U0001f600" + "x" * 5000},
        {"user": "\x1b[31m"},
        {"messages": [{"role": "user", "content": "\x00\u2028\ud7ff\U0010ffff"}]},
    ],
)
async def test_odd_but_legal_requests_are_the_servers_to_judge(
    fake: FakeServer, proxy: Running, fields: dict[str, Any]
) -> None:
    reply = await proxy.ask(chat(**fields))
    assert reply.status == 200
    sent = fake.posts()[-1].json()
    assert {name: sent[name] for name in fields} == fields


async def test_lone_surrogates_are_forwarded_as_they_came(fake: FakeServer, proxy: Running) -> None:
    body = b'{"model": "t\\ud800", "messages": [{"role": "user", "content": "a \\udfff b"}]}'
    assert (await proxy.ask(body)).status == 200
    assert fake.posts()[0].body.startswith(body[:-1])


@pytest.mark.parametrize(
    "deep", [b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000]
)
async def test_deep_nesting_is_refused(proxy: Running, deep: bytes) -> None:
    check_bad(await proxy.ask(b'{"messages": [{"role": "user", "content": "hi"}], "x": ' + deep + b"}"))


@pytest.mark.parametrize("character", ["a", " ", "\\n", '\\"', "\U0001f600", "\\u00e9"])
async def test_ten_megabytes_of_one_character_stall_nobody(
    fake: FakeServer, proxy: Running, character: str
) -> None:
    fake.pool_tokens = 186_624
    text = (character * (10_000_000 // len(character.encode()))).encode()
    asked = asyncio.create_task(
        proxy.ask(b'{"model": "t", "messages": [{"role": "user", "content": "' + text + b'"}]}')
    )
    loop = asyncio.get_running_loop()
    longest = 0.0
    while not asked.done():
        before = loop.time()
        await asyncio.sleep(0.005)
        longest = max(longest, loop.time() - before)
    reply = await asked
    assert reply.status in (200, 400, 429)
    assert reply.whole
    assert longest < 1.0


async def test_token_ids_outside_the_vocabulary_never_reach_the_server(
    fake: FakeServer, proxy: Running
) -> None:
    assert "4096" in check_bad(await proxy.ask({"model": "t", "prompt": [1, 4096]}, COMPLETIONS))["message"]
    check_bad(await proxy.ask({"model": "t", "prompt": [[1], [99_999]]}, COMPLETIONS))
    check_bad(await proxy.ask({"input_ids": [1, 2**31]}, GENERATE))
    check_bad(await proxy.ask(chat(input_ids=[1, 2])))
    assert fake.posts() == []
    assert (await proxy.ask({"model": "t", "prompt": [1, 4095]}, COMPLETIONS)).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"session_params": {"id": "s"}},
        {"custom_logit_processor": "code"},
        {"return_hidden_states": True},
        {"input_embeds": [[0.1]]},
        {"background": True},
    ],
)
async def test_fields_that_cannot_be_honoured_are_refused(
    fake: FakeServer, proxy: Running, fields: dict[str, Any]
) -> None:
    assert check_bad(await proxy.ask(chat(**fields)))["param"] == next(iter(fields))
    assert fake.posts() == []


async def test_a_body_over_the_limit_is_a_413_however_it_comes(fake: FakeServer) -> None:
    async with proxy_before(fake, max_body_bytes=2000) as proxy:
        large = json.dumps(chat("x" * 3000)).encode()
        assert check_bad(await proxy.ask(large), 413)["message"].endswith("2000 bytes")
        anthropic = await proxy.ask(large, MESSAGES)
        assert anthropic.json()["error"]["type"] == "request_too_large"
        check_bad(await proxy.ask(large, "/tokenize"), 413)
        assert (await proxy.ask(large, "/admission/explain")).status == 413
        async with await Connection.open(proxy.port) as connection:
            await connection.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
                b"bb8\r\n" + b"x" * 3000 + b"\r\n"
            )
            check_bad(await connection.reply(), 413)
        assert fake.posts() == []


async def test_a_connection_is_of_use_after_a_413(fake: FakeServer) -> None:
    async with (
        proxy_before(fake, max_body_bytes=2000) as proxy,
        await Connection.open(proxy.port) as connection,
    ):
        await connection.send(request(b"x" * 300_000))
        assert (await connection.reply()).status == 413
        await connection.send(request(chat()))
        assert (await connection.reply()).status == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize", "/admission/explain"])
@pytest.mark.parametrize("begun", [b"", b'{"model":'])
async def test_a_body_that_stops_arriving_is_a_408_and_ends_the_connection(
    proxy: Running, monkeypatch: pytest.MonkeyPatch, path: str, begun: bytes
) -> None:
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.1)
    async with await Connection.open(proxy.port) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n"
        await connection.send(head.encode() + begun)
        reply = await connection.reply()
        assert reply.status == 408
        assert "error" in reply.json()
        assert await connection.closed()


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/admission/explain"])
async def test_a_client_that_leaves_in_its_body_is_no_error(
    proxy: Running, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    for reset in (False, True):
        connection = await Connection.open(proxy.port)
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n"
        await connection.send(head.encode() + b'{"model":')
        await asyncio.sleep(0.02)
        connection.leave(reset=reset)
    await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    if path == CHAT:
        assert proxy.metric("disconnects_total", phase="reading") == 2
