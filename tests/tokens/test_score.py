"""/v1/score, /v1/rerank and /v1/classify: a query beside many items counts once for each."""

from typing import Any

import orjson
import pytest

from proxy.tokens.reading import read
from proxy.tokens.shape import Api, BadRequest, Reading, Shape
from proxy.tokens.sizer import Sizer

QUERY = "which of these is a fruit, and why do you think so " * 8


def reading(api: Api, **body: Any) -> Reading:
    return read(api, orjson.dumps({"model": "m"} | body))


async def tokens(sizer: Sizer, api: Api, **body: Any) -> int:
    return (await sizer.size(api, orjson.dumps({"model": "m"} | body))).raw_tokens


def refused(api: Api, **body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        reading(api, **body)
    return caught.value


def shape(api: Api, **body: Any) -> Shape:
    return reading(api, **body).shape


@pytest.mark.parametrize(
    ("items", "count"), [("an apple", 1), (["an apple"], 1), (["an apple", "a stone", ""], 3), ([], 1)]
)
def test_each_item_is_a_sequence_that_generates_nothing(items: object, count: int) -> None:
    found = shape(Api.SCORE, query=QUERY, items=items, label_token_ids=[1, 2])
    assert (found.sequences, found.batch, found.max_tokens) == (count, count, 0)
    assert not found.has_ids
    assert found.model == "m"


async def test_the_query_counts_once_for_each_item(sizer: Sizer) -> None:
    one = await tokens(sizer, Api.SCORE, query=QUERY, items=["apple"])
    ten = await tokens(sizer, Api.SCORE, query=QUERY, items=["apple"] * 10)
    assert ten == 10 * one > 500


async def test_a_query_of_ids_counts_once_for_each_item(sizer: Sizer) -> None:
    body = {"query": [5] * 40, "items": [[7] * 3, [8] * 4]}
    assert await tokens(sizer, Api.SCORE, **body) == 2 * 40 + 3 + 4
    assert shape(Api.SCORE, **body).largest_id == 8


async def test_a_long_query_of_many_items_is_counted_in_no_time(sizer: Sizer) -> None:
    """Its text is looked at once: 4096 items of 200,000 characters each are not."""
    calls = []
    counter = sizer._counter
    window = counter.window

    def counted(text: str, *rest: Any, **more: Any) -> Any:
        calls.append(len(text))
        return window(text, *rest, **more)

    counter.window = counted  # type: ignore[method-assign]
    await tokens(sizer, Api.SCORE, query=QUERY * 20, items=["x"] * 4096)
    assert sum(calls) < 2 * len(QUERY * 20)


def test_ids_alone_may_be_scored_without_a_query() -> None:
    assert shape(Api.SCORE, items=[[3], [9]]).largest_id == 9
    assert shape(Api.SCORE, items=["a", "b"]).sequences == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "q"}, "items"),
        ({"query": "q", "items": 5}, "items"),
        ({"query": "q", "items": {"a": 1}}, "items"),
        ({"query": "q", "items": [1, 2]}, "items"),
        ({"query": "q", "items": [[1]]}, "items"),
        ({"query": [1], "items": ["a"]}, "items[0]"),
        ({"query": [-1], "items": [[1]]}, "query"),
        ({"query": [1], "items": [[2**40]]}, "items[0]"),
        ({"query": [1], "items": "a"}, "items[0]"),
        ({"query": 7, "items": ["a"]}, "query"),
        ({"query": "q", "items": ["a"], "query_embed_overrides": [[0.1]]}, "query_embed_overrides"),
        ({"query": "q", "items": ["a"], "item_embed_overrides": [None]}, "item_embed_overrides"),
        ({"query": "q", "items": ["a"], "return_pooled_hidden_states": True}, "return_pooled_hidden_states"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refused(Api.SCORE, **body).param == param


async def test_documents_are_each_read_with_the_query(sizer: Sizer) -> None:
    one = await tokens(sizer, Api.RERANK, query=QUERY, documents=["apple"])
    four = await tokens(sizer, Api.RERANK, query=QUERY, documents=["apple"] * 4)
    assert four == 4 * one
    assert shape(Api.RERANK, query=QUERY, documents=["apple"] * 4).sequences == 4


def test_documents_may_have_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    found = shape(Api.RERANK, query=parts, documents=["a", parts, "c"])
    assert found.media == 3 + 1  # the query's image stands before each document


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": "text"}, "documents"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"documents": ["a"]}, "query"),
        ({"query": 5, "documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a", 5]}, "documents[1]"),
        ({"query": "q", "documents": ["a"], "instruct": 5}, "instruct"),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert refused(Api.RERANK, **body).param == param


def test_classification_takes_what_embeddings_take() -> None:
    found = shape(Api.CLASSIFY, input=["one", "two"])
    assert (found.api, found.sequences, found.max_tokens) == (Api.CLASSIFY, 2, 0)
