"""The simulated server on a real socket answers as SGLang 0.5.23 was captured to."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import openai
import orjson
import pytest

from proxy.simulator.server import ServerConfig
from proxy.simulator.text import words
from tests.simulator.serving import FAST, serving

CHAT = "/v1/chat/completions"


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
        yield client


def chat(content: str = "Hello, how are you?", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The stream's events; it must end with [DONE]."""
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *said, done = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert done == "[DONE]"
    return [orjson.loads(part) for part in said]


async def settled(http: httpx.AsyncClient) -> dict[str, Any]:
    load: dict[str, Any] = (await http.get("/v1/loads")).json()["loads"][0]
    return load


async def test_a_chat_is_answered_with_its_usage(http: httpx.AsyncClient) -> None:
    value = (await http.post(CHAT, json=chat(max_tokens=8, model="any"))).json()
    assert (value["object"], value["model"]) == ("chat.completion", "any")
    (choice,) = value["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"].split()) == 8
    usage = value["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 8


async def test_a_chat_stream_is_a_role_chunk_tokens_a_finish_and_usage_when_asked(
    http: httpx.AsyncClient,
) -> None:
    body = chat(max_tokens=5, stream=True, stream_options={"include_usage": True})
    first, *tokens, finish, usage = events(await http.post(CHAT, json=body))
    assert first["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert all(token["choices"][0]["delta"]["content"] for token in tokens)
    assert len(tokens) == 5
    assert finish["choices"][0]["finish_reason"] == "length"
    assert "content" not in finish["choices"][0]["delta"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5


async def test_usage_comes_with_every_token_when_that_is_asked(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    said = events(await http.post(CHAT, json=chat(max_tokens=4, stream=True, stream_options=options)))
    counts = [event["usage"]["completion_tokens"] for event in said if event.get("usage")]
    assert counts == [1, 2, 3, 4, 4, 4]


async def test_a_completion_stream_says_the_end_with_its_last_token(http: httpx.AsyncClient) -> None:
    said = events(
        await http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3, "stream": True})
    )
    assert [event["choices"][0]["finish_reason"] for event in said] == [None, None, "length"]
    assert all(event["choices"][0]["text"] for event in said)


async def test_without_max_tokens_a_chat_ends_by_itself_and_a_completion_after_16(
    http: httpx.AsyncClient,
) -> None:
    value = (await http.post(CHAT, json=chat())).json()
    assert value["choices"][0]["finish_reason"] == "stop"
    again = (await http.post(CHAT, json=chat())).json()
    assert again["usage"]["completion_tokens"] == value["usage"]["completion_tokens"]
    value = (await http.post("/v1/completions", json={"prompt": "x", "ignore_eos": True})).json()
    assert value["usage"]["completion_tokens"] == 16


async def test_min_tokens_says_where_the_end_comes(http: httpx.AsyncClient) -> None:
    value = (await http.post(CHAT, json=chat(min_tokens=77))).json()
    assert (value["usage"]["completion_tokens"], value["choices"][0]["finish_reason"]) == (77, "stop")


async def test_max_completion_tokens_wins(http: httpx.AsyncClient) -> None:
    body = chat(max_tokens=9, max_completion_tokens=3, ignore_eos=True)
    assert (await http.post(CHAT, json=body)).json()["usage"]["completion_tokens"] == 3


async def test_n_counts_the_prompt_once_and_a_batch_each(http: httpx.AsyncClient) -> None:
    one = (await http.post(CHAT, json=chat(max_tokens=4))).json()["usage"]
    two = (await http.post(CHAT, json=chat(max_tokens=4, n=2))).json()
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert two["usage"]["completion_tokens"] == 8
    batch = (
        await http.post("/v1/completions", json={"prompt": ["abcd", "abcdefgh"], "max_tokens": 2})
    ).json()
    assert batch["usage"]["prompt_tokens"] == 3
    assert len(batch["choices"]) == 2


async def test_a_stream_of_two_choices_ends_each(http: httpx.AsyncClient) -> None:
    said = events(await http.post(CHAT, json=chat(max_tokens=3, n=2, stream=True)))
    ends = [event["choices"][0]["index"] for event in said if event["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]


async def test_tokenize_counts_what_usage_counts(http: httpx.AsyncClient) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": words("x", 300)}]
    counted = (await http.post("/v1/tokenize", json={"messages": messages})).json()
    answered = (await http.post(CHAT, json={"messages": messages, "max_tokens": 1})).json()
    assert counted["count"] == len(counted["tokens"]) == answered["usage"]["prompt_tokens"]
    assert counted["max_model_len"] == 40_000
    assert (await http.post("/tokenize", json={"prompt": words("y", 50)})).json()["count"] == 50


async def test_slices_of_ids_are_cached_and_the_chat_itself_hits_them(http: httpx.AsyncClient) -> None:
    body = chat(words("long", 7600))
    ids = (await http.post("/v1/tokenize", json=body)).json()["tokens"]
    cached = []
    for upto in (2048, 4096, 6144):
        slice_ = {"input_ids": ids[:upto], "sampling_params": {"max_new_tokens": 0}}
        cached.append((await http.post("/generate", json=slice_)).json()["meta_info"]["cached_tokens"])
    usage = (await http.post(CHAT, json={**body, "max_tokens": 1})).json()["usage"]
    assert cached == [0, 2048, 4096]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6144}


async def test_the_next_turn_of_a_conversation_hits_all_that_was_said(http: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": words("a", 1000)}]
    first = (await http.post(CHAT, json={"messages": messages, "max_tokens": 50, "ignore_eos": True})).json()
    said = first["choices"][0]["message"]
    messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "And?"}]
    second = (await http.post(CHAT, json={"messages": messages, "max_tokens": 1})).json()["usage"]
    assert (
        second["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] + 49
    )  # all but the last


async def test_generate_streams_all_text_so_far(http: httpx.AsyncClient) -> None:
    body = {"text": "abcd", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}, "stream": True}
    said = events(await http.post("/generate", json=body))
    texts = [event["text"] for event in said]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert said[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    assert len(said[-1]["output_ids"]) == 40


# --- what it does not take --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "words_of_it"),
    [
        (CHAT, b'{"model": "x", "messages": [', "JSON decode error"),
        (CHAT, b"[]", "valid dictionary"),
        (CHAT, b"{}", "messages"),
        (CHAT, b'{"messages": []}', "Messages cannot be empty"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -5}', "at least 0, got -5"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "9"}', "valid integer"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000000}', "too large"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 39999}', "maximum context"),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "n": 0}', "range()"),
        ("/v1/completions", b'{"prompt": ""}', "Prompt cannot be empty"),
        ("/v1/completions", b'{"prompt": [999999]}', "token ids"),
        ("/v1/completions", b'{"prompt": [1.5]}', "prompt must be"),
    ],
)
async def test_bad_input_gets_a_flat_400(
    http: httpx.AsyncClient, path: str, body: bytes, words_of_it: str
) -> None:
    answer = await http.post(path, content=body)
    assert answer.status_code == 400
    value = answer.json()
    assert (value["object"], value["code"]) == ("error", 400)
    assert words_of_it in value["message"]


async def test_more_than_the_pool_is_a_400_and_on_a_stream_an_event_on_200(http: httpx.AsyncClient) -> None:
    body = {"prompt": [7] * 25_000, "max_tokens": 1}
    whole = await http.post("/v1/completions", json=body)
    assert whole.status_code == 400
    assert "Input length (25000 tokens) exceeds the maximum allowed length (19994 tokens)" in whole.text
    (event,) = events(await http.post("/v1/completions", json={**body, "stream": True}))
    assert event["error"]["code"] == 400


async def test_more_than_the_context_is_a_400_in_both(http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        answer = await http.post("/v1/completions", json={"prompt": [7] * 40_000, "stream": stream})
        assert answer.status_code == 400
        assert "longer than the model's context length" in answer.json()["message"]


async def test_a_full_queue_is_503_and_on_a_stream_an_event_on_200() -> None:
    config = ServerConfig(replace(FAST, max_queued_requests=1))
    async with serving(config) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        full = {"prompt": [7] * 15_000, "max_tokens": 1500, "ignore_eos": True}
        running = asyncio.create_task(http.post("/v1/completions", json=full))
        await asyncio.sleep(0.3)
        other = {**full, "prompt": [8] * 15_000}
        waiting = asyncio.create_task(http.post("/v1/completions", json=other))
        await asyncio.sleep(0.1)
        answer = await http.post("/v1/completions", json=full)
        assert (answer.status_code, answer.json()["message"]) == (503, "The request queue is full.")
        assert "retry-after" not in answer.headers
        (event,) = events(await http.post("/v1/completions", json={**full, "stream": True}))
        assert event["error"]["code"] == 503
        await http.post("/abort_request", json={"abort_all": True})
        for answer in await asyncio.gather(running, waiting):
            assert answer.json()["choices"][0]["finish_reason"] == "abort"


async def test_unknown_paths_and_methods_are_404_and_405(http: httpx.AsyncClient) -> None:
    nope = await http.get("/nope")
    assert nope.status_code == 404
    assert "/nope is not simulated; /v1/chat/completions, " in nope.json()["detail"]
    assert (await http.get(CHAT)).status_code == 405
    assert (await http.get("/v1/models/nope")).json()["error"]["code"] == "model_not_found"


# --- leaving ----------------------------------------------------------------------------------


async def test_an_abort_ends_by_prefix_with_finish_reason_abort(http: httpx.AsyncClient) -> None:
    bodies = [chat(max_tokens=9000, ignore_eos=True, rid=rid) for rid in ("job-1", "job-10", "other-1")]
    tasks = [asyncio.create_task(http.post(CHAT, json=body)) for body in bodies]
    await asyncio.sleep(0.3)
    assert (await http.post(CHAT, json=bodies[0])).status_code == 400  # a live id twice
    assert (await http.post("/abort_request", json={"rid": "job-1"})).status_code == 200
    ended = [(await task).json() for task in tasks[:2]]
    assert [value["id"] for value in ended] == ["job-1", "job-10"]
    assert {value["choices"][0]["finish_reason"] for value in ended} == {"abort"}
    assert not tasks[2].done()
    await http.post("/abort_request", json={"rid": "other"})
    await tasks[2]


async def test_a_reader_that_leaves_a_stream_frees_its_tokens_at_once(http: httpx.AsyncClient) -> None:
    body = chat(words("x", 5000), max_tokens=9000, ignore_eos=True, stream=True)
    async with http.stream("POST", CHAT, json=body) as answer:
        async for _ in answer.aiter_bytes():
            break
    begun = time.monotonic()
    while (await settled(http))["num_used_tokens"]:
        assert time.monotonic() - begun < 1.0
        await asyncio.sleep(0.02)


# --- what it says of itself -------------------------------------------------------------------


async def test_loads_show_what_runs(http: httpx.AsyncClient) -> None:
    body = chat(words("x", 5000), max_tokens=9000, ignore_eos=True, rid="r")
    task = asyncio.create_task(http.post(CHAT, json=body))
    await asyncio.sleep(0.5)
    load = await settled(http)
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 0)
    assert load["num_used_tokens"] > 5000
    assert load["max_total_num_tokens"] == 20_000
    assert 0 <= time.time() - load["timestamp"] < 0.3
    assert load["total_prefill_uncached_tokens"] == 5004
    assert load["total_prefill_busy_us"] == pytest.approx(50_040, rel=0.01)
    assert "queues" not in (await http.get("/v1/loads?include=core")).json()["loads"][0]
    assert (await http.get("/v1/loads?dp_rank=7")).json()["loads"] == []
    assert (await http.post("/flush_cache")).status_code == 400
    await http.post("/abort_request", json={"rid": "r"})
    await task


async def test_the_server_says_its_limits(http: httpx.AsyncClient) -> None:
    info = (await http.get("/server_info")).json()
    assert info == (await http.get("/get_server_info")).json()
    assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (20_000, 19_994)
    (card,) = (await http.get("/v1/models")).json()["data"]
    assert (card["id"], card["max_model_len"]) == ("simulated", 40_000)
    assert (await http.get("/get_model_info")).json()["is_generation"]
    assert 'sglang:max_total_num_tokens{engine_type="unified"' in (await http.get("/metrics")).text
    for path in ("/health", "/ready", "/ping"):
        assert (await http.get(path)).status_code == 200
    assert (await http.post("/flush_cache")).status_code == 200


async def test_the_openai_client_reads_its_streams(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        stream = await client.chat.completions.create(
            model="simulated",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        said = [chunk async for chunk in stream]
    assert said[-1].usage is not None
    assert said[-1].usage.completion_tokens == 6


async def test_the_first_token_comes_when_the_engine_says() -> None:
    pace = replace(FAST.pace, prefill_token_seconds=1e-4)  # 0.5 s for 5,000 tokens
    async with (
        serving(ServerConfig(replace(FAST, pace=pace, tokenize_token_seconds=0))) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as http,
    ):
        begun = time.monotonic()
        async with http.stream(
            "POST", CHAT, json=chat(words("x", 4996), max_tokens=2, stream=True)
        ) as answer:
            async for _ in answer.aiter_bytes():
                waited = time.monotonic() - begun
                break
    assert 0.49 < waited < 0.75
