from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.body import parse_object
from proxy.tokens.piecewise import parse_piecewise

# Texts that look like the places where an array is cut, and like its key.
TRAPS = ["},{", "}, {", '"messages": [', "1,2", "\\", '\\"', "é", "😀"]
TEXT = st.lists(st.sampled_from(TRAPS) | st.text(max_size=4), max_size=4).map("".join)
NUMBER = st.integers(-(2**60), 2**60)
VALUE = st.none() | NUMBER | TEXT | st.lists(st.integers(0, 9), max_size=4)
OBJECT: st.SearchStrategy[dict[str, Any]] = st.deferred(
    lambda: st.dictionaries(
        TEXT | st.sampled_from(["messages", "content"]), VALUE | st.lists(OBJECT, max_size=2), max_size=3
    )
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.lists(OBJECT, max_size=5),
        "messages": st.lists(OBJECT, max_size=12) | VALUE,
        "prompt": st.lists(st.integers(0, 200_000), max_size=60) | VALUE,
        "input": st.lists(OBJECT | NUMBER, max_size=12),
        "stream": st.booleans(),
    },
)


ORDERS = st.permutations(["tools", "messages", "prompt", "input", "stream"])


@given(ORDERS, DOCUMENT, st.integers(1, 60), st.booleans())
@settings(max_examples=500, deadline=None)
def test_pieces_give_what_the_whole_gives(
    order: list[str], document: dict[str, Any], size: int, spaced: bool
) -> None:
    ordered = {name: document[name] for name in order if name in document}
    body = orjson.dumps(ordered, option=orjson.OPT_INDENT_2 if spaced else None)

    assert parse_piecewise(body, size) in (None, ordered)


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"a": i} for i in range(100)], "b": 1},
        {"messages": [{"a": [{"b": i}, {"b": "},{"}]} for i in range(100)], "b": 1},
        {"prompt": list(range(100)), "b": 1},
    ],
)
def test_long_arrays_of_objects_and_numbers_are_parsed_in_pieces(document: dict[str, Any]) -> None:
    assert parse_piecewise(orjson.dumps(document), 50) == document


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": "long"}',
        b'{"messages": "x"}',
        b'{"messages": []}',
        b'{"tools": {"messages": [{}, {}, {}, {}, {}, {}, {}]}, "messages": [{}, {}]}',
        b'{"messages": [{}, {}, {}, {}, {}, {}, {}], "messages": [{}]}',
        b'{"messages": [{}, {}, {}, {}, {}, {}, {}',
        b'[{"messages": [{}, {}, {}, {}, {}, {}, {}]}]',
    ],
)
def test_what_does_not_work_out_is_left_to_the_whole(body: bytes) -> None:
    assert parse_piecewise(body, 2) is None


def test_a_body_of_megabytes_reads_the_same() -> None:
    messages = [{"role": "user", "content": f"{index} }},{{ \n" * 9} for index in range(30_000)]
    document = {"model": "m", "messages": messages, "n": 1}

    assert parse_object(orjson.dumps(document)) == document
