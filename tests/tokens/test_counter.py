import random
from typing import Never

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.tokens.counter import EXACT_MOST_CHARS, WINDOW_CHARS, Counter, utf8, windows
from proxy.tokens.memo import Memo

WORDS = ["alpha", "beta", "gamma", "\n", "  ", "3.14", "{}", "日本語", "naïve", "Straße", "😀"]


def cut(text: str, most_chars: int = WINDOW_CHARS) -> list[str]:
    parts = windows(text, most_chars)
    return [text] if parts is None else list(parts)


def count(counter: Counter, text: str) -> int:
    return counter.window(text, utf8(text)).tokens


@given(st.text(max_size=100), st.integers(0, 200))
@settings(max_examples=50, deadline=None)
def test_windows_lose_nothing(piece: str, times: int) -> None:
    text = piece * times

    for most in (WINDOW_CHARS, EXACT_MOST_CHARS):
        parts = cut(text, most)
        assert "".join(parts) == text
        assert all(0 < len(part) <= most for part in parts) or not text


@given(st.integers(), st.integers(0, 12_000))
@settings(max_examples=30, deadline=None)
def test_a_text_that_grows_keeps_its_earlier_windows(seed: int, words: int) -> None:
    text = " ".join(random.Random(seed).choices(WORDS, k=words))
    longer = text + " and more words follow here" * 50
    parts = cut(text)

    assert cut(longer)[: len(parts) - 1] == parts[:-1]


def test_cutting_text_with_words_costs_no_token(counter: Counter, encoding: tiktoken.Encoding) -> None:
    rnd = random.Random(1)
    text = "".join(
        rnd.choice(["word ", "another ", "x = y\n", "def f():\n", "1234 ", "“quoted” "])
        for _ in range(30_000)
    )

    assert sum(count(counter, part) for part in cut(text)) == len(encoding.encode_ordinary(text))


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "=" * 100_000, "7" * 100_000, "中文" * 50_000, "😀" * 30_000]
)
def test_a_hard_cut_costs_less_than_two_tokens(
    text: str, counter: Counter, encoding: tiktoken.Encoding
) -> None:
    parts = cut(text)
    extra = sum(count(counter, part) for part in parts) - len(encoding.encode_ordinary(text))

    assert 0 <= extra <= 1.5 * len(parts)


def test_long_strings_are_remembered_and_short_ones_are_not(encoding: tiktoken.Encoding) -> None:
    counter = Counter(encoding, memo_entries=100)
    count(counter, "short")
    assert counter.memo_entries == 0
    first = count(counter, "long " * 100)
    assert counter.memo_entries == 1
    assert count(counter, "long " * 100) == first
    assert counter.memo_entries == 1


def test_the_memory_is_bounded_and_keeps_what_is_used() -> None:
    memo: Memo[int] = Memo(100)
    memo.put(b"used", 1)
    for index in range(1_000):
        memo.put(b"%d" % index, index)
        assert memo.get(b"used") == 1

    assert len(memo) <= 100
    assert memo.get(b"0") is None
    assert memo.get(b"999") == 999


def test_special_tokens_in_a_text_are_text(counter: Counter) -> None:
    assert count(counter, "<|endoftext|>") > 1


def test_a_sample_stands_for_a_window_that_is_not_known(encoding: tiktoken.Encoding) -> None:
    counter = Counter(encoding, memo_entries=100)
    text = "The quick brown fox jumps over the lazy dog. " * 150
    sampled = counter.window(text, utf8(text), sampled=True).tokens

    assert counter.memo_entries == 0
    assert sampled == pytest.approx(count(counter, text), rel=0.05)
    assert counter.window(text, utf8(text), sampled=True).tokens == count(counter, text)


def test_where_a_cut_must_cost_nothing_a_window_grows_instead() -> None:
    text = "中" * 100_000 + "\nword word " + "中" * 500_000

    assert [len(part) for part in cut(text, EXACT_MOST_CHARS)] == [100_005, 262_144, 237_862]


class PanicException(BaseException):
    """Named as the one that tiktoken's Rust code raises, which cannot be imported."""


class Broken:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode_ordinary(self, text: str) -> Never:
        raise self.error


@pytest.mark.parametrize("error", [PanicException(), ValueError(), UnicodeError(), MemoryError()])
def test_a_failing_encoder_is_replaced_by_bytes(error: BaseException) -> None:
    counter = Counter(Broken(error), memo_entries=10)

    assert count(counter, "x" * 350) == 100
    assert count(counter, "") == 0
    assert counter.failures == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_ends_the_process_is_not_swallowed(error: BaseException) -> None:
    with pytest.raises(type(error)):
        count(Counter(Broken(error), memo_entries=10), "x")


def test_tiktokens_own_panic_does_not_get_through(encoding: tiktoken.Encoding) -> None:
    counter = Counter(encoding, memo_entries=10)

    assert counter.encode(" " * 1_000_000, 1_000_000) > 0


def test_lone_surrogates_are_counted(counter: Counter) -> None:
    assert count(counter, "a\ud800b") > 0
    assert count(counter, "\udfff" * 1_000) > 0
