"""The clients people use, pointed at the proxy instead of SGLang, with nothing else changed."""

import asyncio
import json
import shutil
import subprocess

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam

from tests.load.http1 import get
from tests.load.proxy import ProxyServer
from tests.sglang.server import MODEL_NAME, SGLangServer

LANES = {"short", "long", "giant"}
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": " import the file"}]
TO_THE_END = {"ignore_eos": True}
WEATHER_TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def sdk(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0, timeout=60)


def whole_answer(address: str) -> ChatCompletion:
    return sdk(address).chat.completions.create(
        model=MODEL_NAME, messages=QUESTION, temperature=0, max_tokens=24, extra_body=TO_THE_END
    )


def test_the_sdk_reads_the_same_answer_through_the_proxy_as_from_the_server(
    proxy: ProxyServer, server: SGLangServer
) -> None:
    direct, proxied = whole_answer(server.base_url), whole_answer(proxy.base_url)
    assert proxied.choices == direct.choices
    assert proxied.usage is not None
    assert direct.usage is not None
    assert proxied.usage.prompt_tokens == direct.usage.prompt_tokens
    assert proxied.usage.completion_tokens == direct.usage.completion_tokens == 24


def test_the_sdk_streams_and_the_chunks_make_up_the_whole_answer(proxy: ProxyServer) -> None:
    whole = whole_answer(proxy.base_url).choices[0].message.content
    stream = sdk(proxy.base_url).chat.completions.create(
        model=MODEL_NAME,
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        extra_body=TO_THE_END,
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert len(chunks) > 10
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for usage"


def test_the_sdk_gets_the_usage_chunk_it_asked_for(proxy: ProxyServer) -> None:
    stream = sdk(proxy.base_url).chat.completions.create(
        model=MODEL_NAME,
        messages=QUESTION,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=TO_THE_END,
    )
    last = list(stream)[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8


def test_the_raw_response_carries_the_admission_headers(proxy: ProxyServer) -> None:
    raw = sdk(proxy.base_url).chat.completions.with_raw_response.create(
        model=MODEL_NAME, messages=QUESTION, max_tokens=4
    )
    assert raw.headers["x-admission-lane"] in LANES
    assert float(raw.headers["x-admission-wait-ms"]) >= 0
    assert raw.headers["x-request-id"]
    assert raw.parse().choices


def test_tools_are_passed_on(proxy: ProxyServer) -> None:
    answer = sdk(proxy.base_url).chat.completions.create(
        model=MODEL_NAME,
        messages=QUESTION,
        max_tokens=4,
        tools=[WEATHER_TOOL],
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 4


def test_text_completions_work_with_text_and_with_token_ids(proxy: ProxyServer) -> None:
    client = sdk(proxy.base_url)
    by_text = client.completions.create(model=MODEL_NAME, prompt=" import the file", max_tokens=4)
    by_ids = client.completions.create(model=MODEL_NAME, prompt=[100, 200, 300], max_tokens=4)
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == 3
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 3


def test_models_are_listed_as_the_server_lists_them(proxy: ProxyServer) -> None:
    assert [model.id for model in sdk(proxy.base_url).models.list()] == [MODEL_NAME]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_a_whole_answer_and_a_whole_stream(proxy: ProxyServer) -> None:
    url = f"{proxy.base_url}/v1/chat/completions"
    body = {"model": MODEL_NAME, "messages": QUESTION, "max_tokens": 5, "ignore_eos": True}
    whole = _curl(url, body)
    assert json.loads(whole)["usage"]["completion_tokens"] == 5
    assert _curl(url, body | {"stream": True}).rstrip().endswith("data: [DONE]")


def _curl(url: str, body: dict[str, object]) -> str:
    command = ["curl", "-sS", "--no-buffer", "--max-time", "60", "-H", "content-type: application/json"]
    made = subprocess.run(
        [*command, "-d", json.dumps(body), url], capture_output=True, text=True, check=True, timeout=90
    )
    return made.stdout


@pytest.mark.parametrize(
    "path", ["/flush_cache", "/abort_request", "/update_weights_from_disk", "/server_info"]
)
def test_management_paths_are_not_there(proxy: ProxyServer, path: str) -> None:
    status, _ = asyncio.run(get(proxy.base_url + path))
    assert status == 404
