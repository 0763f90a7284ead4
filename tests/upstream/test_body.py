"""Splicing keys into a body without parsing it, and finding those that must not pass."""

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream import BodyRefused, screen, splice
from proxy.upstream import body as body_module

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))
blanks = st.text(" \t\r\n", max_size=4)


@given(st.dictionaries(st.text(), values, max_size=5), blanks, blanks, blanks, st.booleans())
def test_a_spliced_body_means_the_same_plus_our_keys(
    document: dict[str, Any], before: str, inside: str, after: str, ascii_only: bool
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only)
    body = f"{before}{text[:-1]}{inside}}}{after}".encode(errors="surrogatepass")
    spliced = splice(body, [("priority", b"null"), ("rid", b'"abc"')])
    assert json.loads(spliced.decode(errors="surrogatepass")) == {**document, "priority": None, "rid": "abc"}


@given(st.dictionaries(st.text(), values, max_size=5))
def test_nothing_to_splice_leaves_the_bytes_alone(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    assert splice(body, []) == body


def test_only_the_bytes_before_the_last_brace_change() -> None:
    assert splice(b'{"a": {"b":1} } \n', [("rid", b'"x"')]) == b'{"a": {"b":1} ,"rid":"x"} \n'


@pytest.mark.parametrize("body", [b"{}", b"{ }", b"\n{\n}\n"])
def test_an_empty_object_needs_no_comma(body: bytes) -> None:
    assert json.loads(splice(body, [("rid", b'"x"')])) == {"rid": "x"}


def test_our_key_wins_over_the_clients_own() -> None:
    assert json.loads(splice(b'{"rid":"theirs","a":1}', [("rid", b'"ours"')]))["rid"] == "ours"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"}",
        b"[]",
        b'"text"',
        b"null",
        b'{"a":1} x',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-16-le"),
        "{}".encode("utf-16-be"),
        "{}".encode("utf-32"),
    ],
)
def test_anything_but_one_object_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(BodyRefused, match="one JSON object"):
        screen(body)
    with pytest.raises(BodyRefused, match="one JSON object"):
        splice(body, [("rid", b'"x"')])


def test_a_plain_body_needs_no_overrides() -> None:
    assert screen(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}') == ()


def test_steering_fields_are_named_for_overriding() -> None:
    body = json.dumps({"priority": 100, "routed_dp_rank": 1, "bootstrap_host": "h", "rid": "x"}).encode()
    assert set(screen(body)) == {"priority", "routed_dp_rank", "bootstrap_host"}


def test_steering_fields_that_are_null_or_nested_are_left_alone() -> None:
    tools = [{"function": {"parameters": {"properties": {"priority": {"type": "integer"}}}}}]
    assert screen(json.dumps({"priority": None, "tools": tools}).encode()) == ()


def test_a_prompt_that_quotes_json_is_no_steering_field() -> None:
    assert screen(json.dumps({"prompt": '{"priority": 1, "session_params": {}}'}).encode()) == ()


def test_keys_hidden_behind_escapes_are_found() -> None:
    assert screen(rb'{"pr\u0069ority": 5}') == ("priority",)
    assert screen(rb'{"routed\u005Fdp_rank": 5}') == ("routed_dp_rank",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_params", {"id": "s"}),
        ("custom_logit_processor", "code"),
        ("return_hidden_states", True),
        ("input_embeds", [[0.5]]),
        ("background", True),
    ],
)
def test_fields_that_cannot_be_honoured_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(BodyRefused, match=name) as refused:
        screen(json.dumps({name: value}).encode())
    assert refused.value.param == name


@pytest.mark.parametrize("value", [None, False, {}])
def test_a_refused_field_that_asks_for_nothing_passes(value: object) -> None:
    assert screen(json.dumps({"session_params": value, "background": value}).encode()) == ()


def test_a_clients_own_stream_options_are_reported() -> None:
    assert screen(b'{"stream_options":{"include_usage":false}}') == ("stream_options",)


def test_a_suspect_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(BodyRefused, match="valid JSON"):
        screen(b'{"priority": nonsense}')


@pytest.mark.parametrize("padding", range(0, 220, 7))
@pytest.mark.parametrize("blank", [b"", b" ", b" \n" * 50])
def test_a_field_is_found_wherever_the_search_is_cut(
    monkeypatch: pytest.MonkeyPatch, padding: int, blank: bytes
) -> None:
    monkeypatch.setattr(body_module, "_PIECE_BYTES", 80)
    filler = b'"a": "' + b"x" * padding + b'"'
    for key in (b'"priority"', b'"p\\u0072iority"'):
        assert screen(b"{" + filler + b", " + key + blank + b": 5, " + filler + b"}") == ("priority",)
    assert screen(b"{" + filler + b', "b": "priority", ' + filler + b"}") == ()


@pytest.mark.parametrize("pattern", [b"%b{}", b"{}%b", b"{%b}", b'{"a":1%b}', b'{"rid"%b:1}'])
def test_megabytes_of_blanks_cost_no_seconds(pattern: bytes) -> None:
    body = pattern % (b" " * 20_000_000)
    started = time.perf_counter()
    assert screen(body) == ()
    assert orjson.loads(splice(body, [("rid", b'"x"')]))["rid"] == "x"
    assert time.perf_counter() - started < 1.0
