import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.tokens.composition import COMPONENTS, CONSTANT, DIGITS, TOOLS, largest, tokens_of
from proxy.tokens.regression import Weights

HAN = COMPONENTS.index("han")


def counted(
    ascii_tokens: float = 0, *, digits: float = 0, whole: bool = True, **others: float
) -> list[float]:
    found = [0.0] * len(COMPONENTS)
    found[0], found[DIGITS], found[CONSTANT] = ascii_tokens, digits, float(whole)
    for name, tokens in others.items():
        found[COMPONENTS.index(name)] = tokens
    return found


def test_before_anything_is_known_tokens_count_as_they_are() -> None:
    assert Weights().predict(counted(1_000, han=500, digits=300)).tokens == 1_500


def test_what_a_count_is_made_of_can_be_read() -> None:
    composition = counted(100, han=200, digits=5_000)

    assert tokens_of(composition) == 300
    assert largest(composition) == "han"


def test_each_component_gets_its_own_weight_from_mixed_prompts() -> None:
    weights, rnd = Weights(), random.Random(1)
    for _ in range(60):
        plain, han, tools, digits = (rnd.randrange(8_000) for _ in range(4))
        prompt = counted(plain, han=han, tools=tools, digits=digits)
        weights.learn(prompt, 1.05 * plain + 0.8 * han + 0.0 * tools + 0.66 * digits + 30)

    assert weights.values[0] == pytest.approx(1.05, abs=0.01)
    assert weights.values[HAN] == pytest.approx(0.8, abs=0.01)
    assert weights.values[TOOLS] == pytest.approx(0, abs=0.01)
    assert weights.values[DIGITS] == pytest.approx(0.66, abs=0.01)


def test_tiny_prompts_teach_the_constant_and_not_the_ratio() -> None:
    weights = Weights()
    for _ in range(50):
        weights.learn(counted(10), 48)

    assert weights.values[CONSTANT] == pytest.approx(38, abs=3)
    assert weights.predict(counted(10_000)).tokens == pytest.approx(10_000, rel=0.05)


def test_certainty_grows_with_what_was_seen_and_only_there() -> None:
    weights = Weights()
    before = weights.predict(counted(1_000)).sigma
    for _ in range(20):
        weights.learn(counted(1_000), 1_000)

    assert weights.predict(counted(1_000)).sigma < before / 5
    assert weights.predict(counted(han=1_000)).sigma > before / 2


def test_one_absurd_answer_does_not_spoil_what_was_learnt() -> None:
    weights = Weights()
    for _ in range(50):
        weights.learn(counted(1_000), 1_000)
    weights.learn(counted(1_000), 100_000)

    assert weights.predict(counted(1_000)).tokens == pytest.approx(1_000, rel=0.1)


def test_a_change_is_followed() -> None:
    weights = Weights()
    for ratio in (1.0, 1.3):
        for _ in range(300):
            weights.learn(counted(1_000), 1_000 * ratio)

    assert weights.predict(counted(1_000)).tokens == pytest.approx(1_300, rel=0.02)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 200_000), min_size=4, max_size=4), st.integers(1, 400_000)),
        max_size=60,
    )
)
def test_whatever_comes_the_figures_stay_finite_and_the_doubt_positive(
    answers: list[tuple[list[int], int]],
) -> None:
    weights = Weights()
    for (plain, han, tools, digits), true in answers:
        weights.learn(counted(plain, han=han, tools=tools, digits=digits), true)
    prompt = counted(1_000, han=1_000, tools=1_000, digits=1_000)
    tokens, sigma = weights.predict(prompt)

    assert abs(tokens) < 10_000_000
    assert 0 <= sigma < 10_000


def test_learning_takes_a_fraction_of_a_millisecond() -> None:
    weights, took = Weights(), []
    for index in range(100):
        start = time.perf_counter()
        weights.learn(counted(1_000 + index, han=500, tools=300, digits=100), 1_800)
        took.append(time.perf_counter() - start)

    assert min(took) < 0.0005
