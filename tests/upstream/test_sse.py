"""A stream is counted and relieved of its usage chunk the same way at any chunk boundaries."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.call import Usage
from proxy.upstream.sglang import ROUTES
from proxy.upstream.sse import (
    TAIL_BYTES,
    EventPace,
    StreamWatch,
    Tail,
    UsageSwallower,
    aborted_in,
    early_error,
    error_in,
    error_message,
    has_event,
    meta_usage_in,
    usage_in,
)
from tests.fakes import DONE, chat_stream, error_event, event, usage_event

CHAT = ROUTES["/v1/chat/completions"]
PLAIN = b"".join(chat_stream(8))
WITH_USAGE = b"".join(chat_stream(8, usage=True))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    places = st.lists(st.integers(0, len(data)), max_size=40)
    return places.map(lambda chosen: cut(data, chosen))


def every_single_cut(data: bytes) -> list[list[bytes]]:
    return [cut(data, [place]) for place in range(len(data) + 1)]


@given(cuts(PLAIN))
def test_events_are_counted_the_same_at_any_boundaries(chunks: list[bytes]) -> None:
    watch = StreamWatch(CHAT)
    for chunk in chunks:
        watch.feed(chunk)
    assert watch.events == PLAIN.count(b"data:")
    assert watch.ended
    assert watch.tail.bytes() == PLAIN[-TAIL_BYTES:]


@pytest.mark.parametrize("data", [PLAIN, WITH_USAGE])
def test_byte_by_byte_is_no_different(data: bytes) -> None:
    watch, swallower = StreamWatch(CHAT), UsageSwallower()
    passed = b""
    for i in range(len(data)):
        watch.feed(data[i : i + 1])
        passed += swallower.feed(data[i : i + 1])
    assert watch.events == data.count(b"data:")
    assert watch.ended
    assert passed + swallower.flush() == PLAIN


@given(cuts(WITH_USAGE))
def test_exactly_the_usage_chunk_is_swallowed_at_any_boundaries(chunks: list[bytes]) -> None:
    swallower = UsageSwallower()
    passed = b"".join(swallower.feed(chunk) for chunk in chunks) + swallower.flush()
    assert passed == PLAIN
    assert swallower.usage == Usage(17, 8, 5)


def test_exactly_the_usage_chunk_is_swallowed_at_every_single_cut() -> None:
    for chunks in every_single_cut(WITH_USAGE):
        swallower = UsageSwallower()
        assert b"".join(map(swallower.feed, chunks)) + swallower.flush() == PLAIN


@given(st.lists(st.binary(max_size=40)))
def test_the_swallower_passes_any_garbage_unchanged(chunks: list[bytes]) -> None:
    swallower = UsageSwallower()
    assert b"".join(map(swallower.feed, chunks)) + swallower.flush() == b"".join(chunks)


def test_a_whole_event_is_never_held_back() -> None:
    swallower = UsageSwallower()
    for chunk in chat_stream(3):
        assert swallower.feed(chunk) == chunk


def test_only_the_unfinished_event_is_held_back() -> None:
    first, second, *_ = chat_stream(3)
    swallower = UsageSwallower()
    assert swallower.feed(first + second[:10]) == first
    assert swallower.feed(second[10:]) == second


def test_an_event_too_large_for_a_usage_chunk_is_let_go() -> None:
    large = b"data: " + b"x" * 100_000
    swallower = UsageSwallower()
    assert swallower.feed(large) == large


def test_a_usage_beside_choices_is_no_usage_chunk() -> None:
    both = event({"choices": [{"index": 0}], "usage": {"prompt_tokens": 3}})
    empty = event({"choices": [], "usage": None})
    swallower = UsageSwallower()
    assert swallower.feed(both + empty) == both + empty


def test_events_with_carriage_returns_are_understood() -> None:
    swallower = UsageSwallower()
    lines = [e.replace(b"\n\n", b"\r\n\r\n") for e in chat_stream(2, usage=True)]
    assert b"".join(map(swallower.feed, lines)) + swallower.flush() == b"".join(
        e.replace(b"\n\n", b"\r\n\r\n") for e in chat_stream(2)
    )


def test_the_word_data_inside_a_text_is_not_an_event() -> None:
    watch = StreamWatch(CHAT)
    watch.feed(event({"choices": [{"delta": {"content": "\ndata: [DONE]\n\n data:"}}]}))
    assert (watch.events, watch.ended) == (1, False)


def test_the_first_token_of_each_api_is_its_first_content() -> None:
    responses = StreamWatch(ROUTES["/v1/responses"])
    responses.feed(event({"type": "response.created"}, "response.created"))
    early = responses.started
    responses.feed(event({"type": "response.output_text.delta"}, "response.output_text.delta"))
    assert (early, responses.started) == (False, True)
    messages = StreamWatch(ROUTES["/v1/messages"])
    messages.feed(event({"type": "message_start"}, "message_start"))
    early = messages.started
    messages.feed(event({"type": "content_block_delta"}, "content_block_delta"))
    assert (early, messages.started) == (False, True)


def test_the_end_of_messages_is_its_own_event() -> None:
    messages = StreamWatch(ROUTES["/v1/messages"])
    messages.feed(event({"type": "content_block_delta"}, "content_block_delta"))
    messages.feed(event({"type": "message_stop"}, "message_stop"))
    assert messages.ended


def test_a_stream_that_ends_without_done_has_not_ended() -> None:
    watch = StreamWatch(CHAT)
    watch.feed(PLAIN[: -len(DONE)])
    assert not watch.ended


def test_the_tail_keeps_the_end_and_little_more() -> None:
    tail = Tail()
    data = b"".join(b"%08d" % i for i in range(10_000))
    for i in range(0, len(data), 100):
        tail.add(data[i : i + 100])
    assert tail.bytes() == data[-TAIL_BYTES:]
    tail.add(b"x" * 1_000_000)
    assert len(tail.bytes()) == TAIL_BYTES


def test_usage_of_a_stream_is_the_last_one() -> None:
    continuous = event({"choices": [{}], "usage": {"prompt_tokens": 17, "completion_tokens": 1}})
    assert usage_in(continuous + usage_event(17, 8) + DONE) == Usage(17, 8, 5)


def test_usage_of_a_whole_answer_is_found_at_its_end() -> None:
    body = b'{"id":"x","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,'
    assert usage_in(body + b'"prompt_tokens_details":null},"metadata":{"v":{"a":[1]}}}') == Usage(3, 4, None)


def test_usage_of_responses_and_messages_counts_the_whole_prompt() -> None:
    responses = b'"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":5},"output_tokens":4}'
    assert usage_in(responses) == Usage(12, 4, 5)
    start = event(
        {"message": {"usage": {"input_tokens": 1, "output_tokens": 0, "cache_read_input_tokens": 11}}}
    )
    delta = event({"type": "message_delta", "usage": {"output_tokens": 20}})
    assert usage_in(start + delta) == Usage(12, 20, 11)


@pytest.mark.parametrize(
    "tail",
    [b"", b"garbage", b'"usage":null', b'"usage":{"prompt_tokens":0}', b'"usage":{"prompt_tokens":"x"}'],
)
def test_no_usage_is_none(tail: bytes) -> None:
    assert usage_in(tail) is None


def test_usage_that_a_model_talks_about_is_not_believed() -> None:
    assert usage_in(event({"content": '"usage":{"prompt_tokens":5}'})) is None


def test_generate_reports_its_counts_in_meta_info() -> None:
    answer = event(
        {"text": "a", "meta_info": {"prompt_tokens": 2, "completion_tokens": 8, "cached_tokens": 1}}
    )
    assert meta_usage_in(answer + DONE) == Usage(2, 8, 1)
    assert meta_usage_in(b"nothing") is None


def test_an_aborted_end_is_recognised_in_both_shapes() -> None:
    assert aborted_in(b'"finish_reason":"abort","matched_stop":null')
    assert aborted_in(b'"finish_reason":{"type":"abort","message":"m"}')
    assert not aborted_in(b'"finish_reason":"length"')


FULL = "The request queue is full."
INVALID = {"message": "m", "type": "invalid_request_error", "code": 400}
REJECTED = {"type": "abort", "status_code": 503, "message": FULL}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (error_event(FULL, 503) + DONE, (503, FULL, "SERVICE_UNAVAILABLE")),
        (event({"error": INVALID}), (400, "m", "invalid_request_error")),
        (event({"text": "", "meta_info": {"finish_reason": REJECTED}}), (503, FULL, "")),
        (event(OVERLOADED, "error"), (503, "busy", "overloaded_error")),
        (event({"error": {"message": "m"}}), (500, "m", "")),
        (event({"error": {"message": "m", "code": 200}}), (500, "m", "")),
        (event({"meta_info": {"finish_reason": {"type": "length"}}}), None),
        (event({"meta_info": {"finish_reason": {"type": "abort"}}}), None),
        (chat_stream(1)[0], None),
        (b"data: not json\n\n", None),
        (DONE, None),
        (b"", None),
    ],
)
def test_a_failure_in_the_first_event_becomes_a_status(first: bytes, expected: object) -> None:
    assert early_error(first) == expected


def test_the_message_of_a_refusal_is_found_flat_or_nested() -> None:
    assert error_message(b'{"object":"error","message":"full","code":503}') == "full"
    assert error_message(b'{"error":{"message":"full"}}') == "full"
    assert error_message(b'{"error":"Unauthorized"}') == ""
    assert error_message(b"<html>") == ""


def test_an_error_in_the_middle_of_a_stream_is_seen_at_its_end() -> None:
    assert error_in(PLAIN[: -len(DONE)] + error_event("out of memory", 500) + DONE) == "out of memory"
    assert error_in(PLAIN) is None
    assert error_in(b'\ndata: {"error": 5}\n') == "error event"


def test_a_first_event_is_whole_only_with_its_end() -> None:
    for size in range(len(PLAIN)):
        assert has_event(PLAIN[:size]) == (size >= len(chat_stream()[0]))
    assert not has_event(b": ping\n\n")
    assert has_event(b": ping\n\ndata: x\n\n")
    assert has_event(b"event: e\ndata: x\r\n\r\n")


def test_tokens_per_event_follow_the_servers_usage() -> None:
    pace = EventPace(1.0)
    for _ in range(60):
        pace.learn(100, 400)
    assert pace.tokens_per_event == pytest.approx(4.0, rel=0.01)
    pace.learn(2, 2)
    assert pace.tokens_per_event == pytest.approx(4.0, rel=0.01)
