"""The official SDKs get the same through the proxy as from the server: whole, streamed, with tools, raw."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from tests import sdk_calls
from tests.e2e import sdk_server
from tests.fakes import FakeServer
from tests.proxies import Running
from tests.sdk_calls import AnthropicCall, OpenAICall

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Clients:
    """An SDK at the server itself and at the proxy: making one takes a tenth of a second."""

    openai_direct: openai.AsyncOpenAI
    openai: openai.AsyncOpenAI
    anthropic_direct: anthropic.AsyncAnthropic
    anthropic: anthropic.AsyncAnthropic


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def clients(both: tuple[FakeServer, Running]) -> AsyncIterator[Clients]:
    server, running = both
    proxied = f"http://127.0.0.1:{running.port}"
    usual: dict[str, Any] = {"api_key": "unused", "max_retries": 0, "timeout": 10}
    async with (
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", **usual) as openai_direct,
        openai.AsyncOpenAI(base_url=f"{proxied}/v1", **usual) as openai_proxied,
        anthropic.AsyncAnthropic(base_url=server.url, **usual) as anthropic_direct,
        anthropic.AsyncAnthropic(base_url=proxied, **usual) as anthropic_proxied,
    ):
        yield Clients(openai_direct, openai_proxied, anthropic_direct, anthropic_proxied)


@pytest.mark.parametrize("call", sdk_calls.OPENAI, ids=lambda call: call.__name__)
async def test_openai(server: FakeServer, proxy: Running, clients: Clients, call: OpenAICall) -> None:
    server.answer = sdk_server.answer
    direct = await call(clients.openai_direct, "tiny")
    assert await call(clients.openai, "tiny") == direct
    assert direct


@pytest.mark.parametrize("call", sdk_calls.ANTHROPIC, ids=lambda call: call.__name__)
async def test_anthropic(server: FakeServer, proxy: Running, clients: Clients, call: AnthropicCall) -> None:
    server.answer = sdk_server.answer
    direct = await call(clients.anthropic_direct, "tiny")
    assert await call(clients.anthropic, "tiny") == direct
    assert direct


async def test_a_batch_of_embeddings(server: FakeServer, proxy: Running, clients: Clients) -> None:
    server.answer = sdk_server.answer
    found = await clients.openai.embeddings.create(
        model="tiny", input=["a", "b", "c"], encoding_format="float"
    )
    assert [item.embedding for item in found.data] == [[0.5, 0], [0.5, 1], [0.5, 2]]


async def test_refusals_are_the_exceptions_of_the_sdk(
    server: FakeServer, proxy: Running, clients: Clients
) -> None:
    huge: Any = [{"role": "user", "content": "a b c d e f g h i j " * 60_000}]
    client = clients.openai
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="tiny", messages=huge)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.retrieve("resp_" + "0" * 32)
    assert missing.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel("resp_" + "0" * 32)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="tiny", input="a", previous_response_id="resp_x")
    with pytest.raises(anthropic.BadRequestError) as turned_away:
        await clients.anthropic.messages.create(model="tiny", messages=huge, max_tokens=5)
    assert turned_away.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
