"""Bodies made to hurt: they end in bounded time, and in nothing but a size or a BadRequest."""

import time
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.reading import read
from proxy.tokens.shape import Api, BadRequest
from proxy.tokens.sizer import Sizer
from tests.tokens.hostile import BODIES, REFUSED, chat
from tests.tokens.strategies import requests

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


@given(requests())
@settings(max_examples=600, deadline=None)
def test_no_json_makes_a_reader_raise_anything_but_a_bad_request(request: tuple[Api, dict[str, Any]]) -> None:
    api, body = request
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
