"""Exact counting before a real SGLang: 500 mixed requests, each count the server's own."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from proxy.tokens.shape import Api
from proxy.tokens.sizer import Sizer
from tests.sglang.server import SGLangServer
from tests.tokens.loaded import exact_sizer
from tests.tokens.texts import texts

REQUESTS = 500
AT_ONCE = 8
LONGEST_CHARS = 6000

Asked = tuple[Api, str, dict[str, Any]]


@pytest.fixture
async def sizer(server: SGLangServer) -> AsyncIterator[Sizer]:
    async with exact_sizer(server.tokenizer_path) as sizer:
        yield sizer


def mixed(count: int, seed: int) -> list[Asked]:
    """Chats of some turns, with and without parts, completions and `/generate`, in every kind of text."""
    draw = random.Random(seed)
    kinds = list(texts(LONGEST_CHARS).values())

    def some() -> str:
        text = draw.choice(kinds)
        start = draw.randrange(len(text) // 2)
        return text[start : start + draw.randint(1, LONGEST_CHARS // 2)] or "x"

    def chat() -> Asked:
        roles = ["user", "assistant"] * 3
        messages: list[dict[str, Any]] = (
            [{"role": "system", "content": some()}] if draw.random() < 0.5 else []
        )
        for role in roles[: draw.choice([1, 1, 3, 5])]:
            parts = [{"type": "text", "text": some()} for _ in range(2)] if draw.random() < 0.2 else some()
            messages.append({"role": role, "content": parts})
        body = {"model": "tiny", "messages": messages, "max_tokens": 1}
        return Api.CHAT, "/v1/chat/completions", body

    def completion() -> Asked:
        return Api.COMPLETIONS, "/v1/completions", {"model": "tiny", "prompt": some(), "max_tokens": 1}

    def generate() -> Asked:
        body = {"text": some(), "sampling_params": {"max_new_tokens": 1}}
        return Api.GENERATE, "/generate", body

    return [draw.choice([chat, chat, completion, generate])() for _ in range(count)]


def told(api: Api, answer: dict[str, Any]) -> int:
    where = answer["meta_info"] if api is Api.GENERATE else answer["usage"]
    tokens: int = where["prompt_tokens"]
    return tokens


async def test_five_hundred_mixed_requests_are_counted_as_the_server_counts_them(
    server: SGLangServer, sizer: Sizer
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def differs(client: httpx.AsyncClient, asked: Asked) -> str | None:
        api, path, body = asked
        content = orjson.dumps(body)
        async with gate:
            ours = await sizer.size(api, content)
            answer = await client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        server_says = told(api, answer.json())
        exact = ours.exact and ours.prompt_tokens == server_says
        return None if exact else f"{path}: {ours.prompt_tokens} (exact: {ours.exact}), server {server_says}"

    async with httpx.AsyncClient(base_url=server.base_url, timeout=60.0) as client:
        found = await asyncio.gather(*(differs(client, asked) for asked in mixed(REQUESTS, seed=11)))
    wrong = [line for line in found if line]
    assert not wrong, f"{len(wrong)} of {REQUESTS} differ, such as {wrong[:3]}"


async def test_the_ids_of_a_chat_are_the_servers_own(server: SGLangServer, sizer: Sizer) -> None:
    async with httpx.AsyncClient(base_url=server.base_url, timeout=60.0) as client:
        for api, _, body in [asked for asked in mixed(60, seed=12) if asked[0] is Api.CHAT][:20]:
            answer = await client.post("/v1/tokenize", json={**body, "stream": False})
            assert await sizer.ids(api, orjson.dumps(body)) == answer.json()["tokens"]
