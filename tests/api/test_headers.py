"""Header hygiene in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.headers import first, forwarded, request_id, wait_limit_seconds, with_ours

PLAIN = [(b"user-agent", b"curl"), (b"accept", b"*/*"), (b"x-trace", b"1")]


def test_what_concerns_nobody_else_goes_on_in_its_order() -> None:
    assert forwarded(PLAIN, authorization=False) == PLAIN


@pytest.mark.parametrize(
    "name",
    [
        "x-override-rid",
        "x-override-priority",
        "x-data-parallel-rank",
        "x-sglang-anything",
        "x-bootstrap-host",
        "x-body-compressed",
        "x-admission-lane",
        "host",
        "content-length",
        "expect",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-authorization",
        "proxy-connection",
        "x-api-key",
        "x-request-timeout-ms",
        "authorization",
    ],
)
def test_what_steers_the_engine_or_this_hop_does_not(name: str) -> None:
    assert forwarded([*PLAIN, (name.encode(), b"1")], authorization=False) == PLAIN


def test_a_header_named_by_connection_stays_on_this_hop() -> None:
    named = [(b"connection", b"close, X-Secret"), (b"x-secret", b"1"), *PLAIN]
    assert forwarded(named, authorization=False) == PLAIN


def test_a_client_cannot_have_its_key_dropped_silently_where_it_is_to_be_passed_on() -> None:
    pair = (b"authorization", b"Bearer me")
    assert forwarded([pair], authorization=True) == [pair]
    assert forwarded([pair], authorization=False) == []


def test_ours_replace_what_the_backend_sent_under_the_same_name() -> None:
    theirs = [(b"Server", b"x"), (b"X-Request-Id", b"theirs"), (b"x-admission-lane", b"forged")]
    ours = [(b"x-request-id", b"ours"), (b"x-admission-lane", b"short")]
    assert with_ours(theirs, ours) == [(b"Server", b"x"), *ours]


def test_headers_of_the_same_name_are_all_kept() -> None:
    cookies = [(b"set-cookie", b"a"), (b"set-cookie", b"b")]
    assert with_ours(cookies, [(b"x-request-id", b"1")])[:2] == cookies
    assert forwarded(cookies, authorization=False) == cookies


def test_the_first_of_equal_headers_counts() -> None:
    assert first([(b"a", b"1"), (b"a", b"2")], b"a") == b"1"
    assert first([], b"a") is None


@pytest.mark.parametrize("value", [b"abc-1", b"~", b"x" * 128])
def test_a_short_printable_request_id_is_kept(value: bytes) -> None:
    assert request_id([(b"x-request-id", value)], "ours") == value.decode()


@pytest.mark.parametrize(
    "value", [b"", b"x" * 129, b"a b", b"a\tb", b"\xc3\xa9", b"a\x7f", b"a\r\nset-cookie: x"]
)
def test_any_other_is_replaced(value: bytes) -> None:
    assert request_id([(b"x-request-id", value)], "ours") == "ours"


@given(st.binary(max_size=200))
def test_no_request_id_can_break_a_header_line(value: bytes) -> None:
    kept = request_id([(b"x-request-id", value)], "ours")
    assert kept == "ours" or kept.encode() == value
    assert kept.isprintable()
    assert " " not in kept


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1500", 1.5),
        (b"0", 0.0),
        (b"1e9", 600.0),
        (b"inf", 60.0),
        (b"nan", 60.0),
        (b"-1", 60.0),
        (b"soon", 60.0),
        (b"", 60.0),
        (b"9" * 400, 60.0),
        (b"\xff", 60.0),
    ],
)
def test_a_client_may_shorten_its_wait_or_lengthen_it_to_the_limit_and_nonsense_changes_nothing(
    value: bytes, seconds: float
) -> None:
    assert wait_limit_seconds([(b"x-request-timeout-ms", value)], 60.0, 600.0) == seconds


def test_without_the_header_the_default_holds() -> None:
    assert wait_limit_seconds([], 60.0, 600.0) == 60.0
