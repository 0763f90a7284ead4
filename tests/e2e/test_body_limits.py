"""Bodies that are too large, too slow, or never end."""

import asyncio
import json

import pytest

from proxy.api import asgi
from tests.e2e.test_bad_input import MESSAGES, check_bad
from tests.fakes import FakeServer
from tests.proxies import Running, proxy_before
from tests.raw_http import CHAT, Connection, chat, request

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_body_over_the_limit_is_a_413_however_it_comes(server: FakeServer) -> None:
    async with proxy_before(server, max_body_bytes=2000) as proxy:
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
        assert server.posts() == []


async def test_a_connection_is_of_use_after_a_413(server: FakeServer) -> None:
    async with (
        proxy_before(server, max_body_bytes=2000) as proxy,
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
