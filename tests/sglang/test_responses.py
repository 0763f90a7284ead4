"""Responses that a real server keeps: in the background, gone on from, asked for and cancelled."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.load.proxy import ProxyServer
from tests.sglang.server import MODEL_NAME, SGLangServer


def sdk(proxy: ProxyServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.base_url}/v1", api_key="unused", max_retries=0, timeout=60)


async def charged_tokens(proxy: ProxyServer) -> int:
    async with httpx.AsyncClient() as client:
        pools = (await client.get(f"{proxy.base_url}/admission/status")).json()["pools"]
    return sum(pool["committed_total_tokens"] for pool in pools)


async def until_nothing_is_charged(proxy: ProxyServer, seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while await charged_tokens(proxy):
            await asyncio.sleep(0.1)


async def test_one_in_the_background_is_charged_until_it_has_ended(proxy: ProxyServer) -> None:
    async with sdk(proxy) as client:
        begun = await client.responses.create(
            model=MODEL_NAME, input=" a file", background=True, max_output_tokens=1500
        )
        assert begun.status == "queued"
        seen = set()
        async with asyncio.timeout(60):
            while begun.status in ("queued", "in_progress"):
                seen.add(await charged_tokens(proxy) > 0)
                await asyncio.sleep(0.1)
                begun = await client.responses.retrieve(begun.id)
        assert begun.status in ("completed", "incomplete")
        assert begun.usage is not None
        assert True in seen
        await until_nothing_is_charged(proxy)


async def test_nobody_needs_to_ask_for_it(proxy: ProxyServer) -> None:
    async with sdk(proxy) as client:
        await client.responses.create(
            model=MODEL_NAME, input=" a file", background=True, max_output_tokens=50
        )
        await until_nothing_is_charged(proxy)


async def test_it_can_be_cancelled(server: SGLangServer, proxy: ProxyServer) -> None:
    async with sdk(proxy) as client:
        begun = await client.responses.create(
            model=MODEL_NAME, input=" a file", background=True, max_output_tokens=20_000
        )
        await asyncio.sleep(0.5)
        assert await charged_tokens(proxy) > 0
        assert (await client.responses.cancel(begun.id)).status == "cancelled"
        await until_nothing_is_charged(proxy)
        async with httpx.AsyncClient() as http:
            loads = (await http.get(f"{server.base_url}/v1/loads?include=core")).json()["loads"]
        assert loads[0]["num_running_reqs"] == 0


async def test_a_turn_goes_on_from_the_one_before(proxy: ProxyServer) -> None:
    asked: dict[str, Any] = {"model": MODEL_NAME, "max_output_tokens": 12, "temperature": 0}
    async with sdk(proxy) as client:
        first = await client.responses.create(input=" import the file " * 300, **asked)
        stream = await client.responses.create(
            input=" and then", previous_response_id=first.id, stream=True, **asked
        )
        events = [event async for event in stream]
        last = events[-1]
        assert isinstance(
            last,
            openai.types.responses.ResponseCompletedEvent | openai.types.responses.ResponseIncompleteEvent,
        )
        assert first.usage is not None
        assert last.response.usage is not None
        assert last.response.usage.input_tokens > first.usage.input_tokens
        third = await client.responses.create(
            input=" at last", previous_response_id=last.response.id, **asked
        )
        assert third.usage is not None
        assert third.usage.input_tokens > last.response.usage.input_tokens
        assert (await client.responses.retrieve(third.id)).id == third.id
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(input="a", previous_response_id="resp_" + "0" * 32, **asked)
    await until_nothing_is_charged(proxy)


async def test_scores_are_those_of_the_server(server: SGLangServer, proxy: ProxyServer) -> None:
    texts = {"query": " import the", "items": [" file", " folder", ""], "label_token_ids": [5, 9]}
    ids = {"query": [100, 200], "items": [[5], [6, 7]], "label_token_ids": [5, 9]}
    async with httpx.AsyncClient() as client:
        for body in (texts, ids):
            asked = body | {"model": MODEL_NAME, "apply_softmax": True}
            direct, proxied = [
                (await client.post(f"{address}/v1/score", json=asked)).json()
                for address in (server.base_url, proxy.base_url)
            ]
            assert proxied["scores"] == direct["scores"], direct
            assert proxied["usage"] == direct["usage"]
        killer = {"query": [100], "items": [[10**6]], "label_token_ids": [5]}
        assert (await client.post(f"{proxy.base_url}/v1/score", json=killer)).status_code == 400
    await until_nothing_is_charged(proxy)
    assert server.is_running()
