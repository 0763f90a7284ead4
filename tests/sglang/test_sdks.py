"""The official SDKs get the same from a real server, directly and through the proxy."""

import anthropic
import openai
import pytest

from tests import sdk_calls
from tests.load.proxy import ProxyServer
from tests.sdk_calls import AnthropicCall, OpenAICall
from tests.sglang.server import MODEL_NAME, SGLangServer


@pytest.mark.parametrize("call", sdk_calls.OPENAI, ids=lambda call: call.__name__)
async def test_openai(server: SGLangServer, proxy: ProxyServer, call: OpenAICall) -> None:
    found = []
    for address in (server.base_url, proxy.base_url):
        server.flush_cache()  # usage tells what was cached
        async with openai.AsyncOpenAI(
            base_url=f"{address}/v1", api_key="unused", max_retries=0, timeout=60
        ) as client:
            found.append(await call(client, MODEL_NAME))
    direct, proxied = found
    assert proxied == direct
    assert direct


@pytest.mark.parametrize("call", sdk_calls.ANTHROPIC, ids=lambda call: call.__name__)
async def test_anthropic(server: SGLangServer, proxy: ProxyServer, call: AnthropicCall) -> None:
    found = []
    for address in (server.base_url, proxy.base_url):
        server.flush_cache()
        async with anthropic.AsyncAnthropic(
            base_url=address, api_key="unused", max_retries=0, timeout=60
        ) as client:
            found.append(await call(client, MODEL_NAME))
    direct, proxied = found
    assert proxied == direct
    assert direct
