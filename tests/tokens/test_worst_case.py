"""Bodies made to hurt: they end in bounded time, and in nothing but a size or a BadRequest."""

import time

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.reading import read
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sizer import Sizer
from tests.tokens.hostile import BODIES, REFUSED, chat

MOST_SECONDS = 20  # ten times what it takes here, for a busy machine


@pytest.mark.parametrize("kind", BODIES)
async def test_ten_megabytes_end_in_bounded_time(kind: str, sizer: Sizer) -> None:
    body = BODIES[kind]()
    start = time.perf_counter()
    if kind in REFUSED:
        with pytest.raises(BadRequest):
            await sizer.size(Api.CHAT, body)
    else:
        assert (await sizer.size(Api.CHAT, body)).prompt_tokens > 0
    assert time.perf_counter() - start < MOST_SECONDS


async def test_nine_megabytes_that_are_counted_whole_end_in_bounded_time(sizer: Sizer) -> None:
    start = time.perf_counter()
    for letter in " a=\n":
        await sizer.size(Api.CHAT, chat(letter * 4_000_000))
    assert time.perf_counter() - start < MOST_SECONDS


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    "messages",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "prompt",
    "input",
    "text",
    "input_ids",
    "input_embeds",
    "image_data",
    "sampling_params",
    "tools",
    "tool_choice",
    "system",
    "metadata",
    "instructions",
    "response_format",
    "min_tokens",
    "ignore_eos",
    "user",
    "previous_response_id",
]
PART_TYPES = [
    "text",
    "image_url",
    "input_image",
    "image",
    "input_audio",
    "file",
    "document",
    "tool_use",
    "tool_result",
    "thinking",
    "video_url",
    "input_file",
    "unheard_of",
]
PART_FIELDS = ["text", "image_url", "source", "content", "input", "name", "file", "input_audio"]
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_TYPES) | JSON}, optional=dict.fromkeys(PART_FIELDS, JSON)
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | JSON},
    optional={
        "content": st.lists(PART, max_size=3) | JSON,
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | JSON,
        **dict.fromkeys(["tool_calls", "reasoning_content", "tools", "output", "arguments"], JSON),
    },
)
MESSAGES = st.lists(MESSAGE | JSON, max_size=3) | JSON
BODY = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5)


@given(st.sampled_from(Api), BODY, MESSAGES)
@settings(max_examples=600, deadline=None)
def test_no_json_makes_a_reader_raise_anything_but_a_bad_request(
    api: Api, body: dict[str, object], messages: object
) -> None:
    name = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input"}.get(api)
    if name is not None:
        body = body | {name: messages} | ({"max_tokens": 5} if api is Api.MESSAGES else {})
    try:
        shape, prompt = read(api, orjson.dumps(body))
    except BadRequest:
        return
    assert shape.sequences >= 1
    assert shape.max_tokens is None or shape.max_tokens >= 0
    assert all(isinstance(text, str) for item in prompt.items for unit in item for text in unit.texts)


@given(st.binary(max_size=200))
def test_no_bytes_make_a_reader_raise_anything_but_a_bad_request(body: bytes) -> None:
    try:
        read(Api.CHAT, body)
    except BadRequest:
        return
