import random
import time

import pytest

from proxy.tokens.exact.added import AddedToken, AddedTokens, nfc
from proxy.tokens.exact.patterns import Unsupported


def pieces(text: str, *tokens: AddedToken) -> list[str | int]:
    return list(AddedTokens(list(tokens), nfc).pieces(text))


def test_the_longest_token_at_the_first_place_wins() -> None:
    tokens = [AddedToken("<a", 1), AddedToken("<a>", 2), AddedToken("<ab>", 3), AddedToken("b>", 4)]

    assert pieces("x<a><ab><ay b>", *tokens) == ["x", 2, 3, 1, "y ", 4]


def test_raw_tokens_come_before_normalised_ones() -> None:
    tokens = [AddedToken("<<x>>", 1, normalized=True), AddedToken("<x>", 2)]

    assert pieces("a<<x>>b", *tokens) == ["a<", 2, ">b"]


def test_normalised_tokens_are_found_in_the_normalised_text() -> None:
    assert pieces("x e\u0301 y", AddedToken("é", 1, normalized=True)) == ["x ", 1, " y"]
    assert pieces("x e\u0301 y", AddedToken("é", 1)) == ["x é y"]


def test_tokens_may_strip_the_blanks_around_them() -> None:
    token = AddedToken("<m>", 1, lstrip=True, rstrip=True)

    assert pieces("a \n<m>\t <m>  b", token) == ["a", 1, 1, "b"]
    assert pieces("  <m>", token) == [1]


def test_without_tokens_a_text_is_one_piece() -> None:
    assert pieces("abc") == ["abc"]
    assert pieces("") == []


def test_tokens_for_single_words_are_not_supported() -> None:
    with pytest.raises(Unsupported, match="single words"):
        pieces("x", AddedToken("a", 1, single_word=True))


def test_nothing_is_lost_and_a_thousand_tokens_are_no_slower() -> None:
    rnd = random.Random(1)
    tokens = [AddedToken(f"<|reserved_{index}|>", index) for index in range(1_000)]
    text = "".join(
        rnd.choices(["if a < b: ", "<|reserved_", "<|", "7|>", "x" * 50, "<|reserved_999|>"], k=40_000)
    )
    start = time.perf_counter()
    found = pieces(text, *tokens)
    took = time.perf_counter() - start

    assert "".join(piece if isinstance(piece, str) else tokens[piece].content for piece in found) == text
    assert took < 1


def test_a_token_on_the_border_of_two_searches_is_found() -> None:
    token = AddedToken("<|border|>", 1)
    for before in range(262_130, 262_150):
        assert pieces("x" * before + "<|border|>y", token) == ["x" * before, 1, "y"]
