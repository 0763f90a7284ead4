import json

import pytest

from proxy.tokens.body import parse_object
from proxy.tokens.shape import BadRequest


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[", b'{"a": }', b"nonsense", b'{"a": 1}}', b'{"a": "\xff"}', b"\xff\xfe{}", b'{"a": NaN}'],
)
def test_what_is_not_json_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not valid JSON"):
        parse_object(body)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true"])
def test_what_is_not_an_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest, match="must be a JSON object"):
        parse_object(body)


def test_lone_surrogates_are_read_as_replacement_characters() -> None:
    body = rb'{"a": "x\ud800y", "b": "\udfff", "c": "\ud83d\ude00", "d": "\\ud800", "e": "\ude00\ud83d!"}'

    assert parse_object(body) == {
        "a": "x\ufffdy",
        "b": "\ufffd",
        "c": "😀",
        "d": r"\ud800",
        "e": "\ufffd\ufffd!",
    }


def test_a_surrogate_does_not_hide_a_syntax_error() -> None:
    with pytest.raises(BadRequest, match="not valid JSON"):
        parse_object(rb'{"a": "\ud800", }')


def test_a_text_of_nothing_but_lone_surrogates_is_refused() -> None:
    assert parse_object(b'{"a": "' + rb"\ud800" * 10_000 + b'"}')["a"] == "\ufffd" * 10_000
    with pytest.raises(BadRequest, match="too many lone surrogates"):
        parse_object(b'{"a": "' + rb"\ud800" * 10_001 + b'"}')


def test_deep_nesting_is_refused_and_not_followed() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        body = b'{"x":' + opening * 10_000 + b"1" + closing * 10_000 + b"}"
        with pytest.raises(BadRequest, match="depth limit"):
            parse_object(body)


def test_millions_of_objects_are_refused_before_they_are_made() -> None:
    with pytest.raises(BadRequest, match="too many objects"):
        parse_object(b'{"messages":[' + b"{}," * 600_000 + b"{}]}")


def test_a_long_text_full_of_brackets_is_no_trouble() -> None:
    body = json.dumps({"text": "{[" * 200_000}).encode()

    assert len(parse_object(body)["text"]) == 400_000
