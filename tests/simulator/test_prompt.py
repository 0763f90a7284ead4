from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.simulator.prompt import SpanPrompt, TokenPrompt


def packed(*ids: int) -> TokenPrompt:
    return TokenPrompt(array("I", ids).tobytes())


def test_prompts_agree_as_far_as_their_spans_have_equal_keys() -> None:
    one = SpanPrompt([("system", 100), ("a", 50)])
    other = SpanPrompt([("system", 100), ("b", 50)])
    assert one.agreement(other, 0, 150) == 100
    assert one.agreement(one, 0, 150) == 150


def test_the_shorter_of_two_spans_with_one_key_is_a_prefix_of_the_longer() -> None:
    short, long = SpanPrompt([("text", 40), ("end", 10)]), SpanPrompt([("text", 100)])
    assert short.agreement(long, 0, 50) == 40
    assert long.agreement(short, 0, 50) == 40


def test_the_same_key_further_on_is_another_token() -> None:
    prompt = SpanPrompt([("a", 2), ("b", 2)])
    assert len({prompt.unit(at) for at in range(4)}) == 4


def test_empty_spans_are_dropped() -> None:
    assert SpanPrompt([("a", 0), ("b", 3)]).spans() == [("b", 3)]


def test_a_span_prompt_goes_on_with_what_was_generated() -> None:
    prompt = SpanPrompt([("a", 5)]).followed_by("out", 3)
    assert prompt.tokens == 8
    assert prompt.agreement(SpanPrompt([("a", 5), ("out", 10), ("b", 1)]), 0, 8) == 8


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_token_prompts_agree_up_to_the_first_different_id(one: list[int], other: list[int]) -> None:
    stop = min(len(one), len(other))
    expected = next((at for at in range(stop) if one[at] != other[at]), stop)
    if stop:
        assert packed(*one).agreement(packed(*other), 0, stop) == expected


def test_a_prefix_is_as_long_as_asked() -> None:
    prompt = SpanPrompt([("a", 5), ("b", 5), ("c", 5)])
    assert prompt.first(7).spans() == [("a", 5), ("b", 2)]
    assert prompt.first(99).tokens == 15


class Sevens:
    def packed_ids(self, count: int) -> bytes:
        return array("I", [7] * count).tobytes()


def test_a_token_prompt_goes_on_with_as_many_ids_as_were_generated() -> None:
    assert packed(1, 2).followed_by(Sevens(), 2).agreement(packed(1, 2, 7, 7), 0, 4) == 4


@pytest.mark.parametrize("start", [0, 1, 2])
def test_agreement_starts_where_it_is_told(start: int) -> None:
    assert packed(1, 2, 3, 4).agreement(packed(1, 2, 3, 5), start, 4) == 3
