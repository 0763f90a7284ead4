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


def test_it_is_a_kalman_filter_whatever_a_prompt_is_made_of() -> None:
    """Only what a prompt is made of is looked at: that must come to the same as looking at everything."""
    dice = random.Random(7)
    weights, size = Weights(), len(COMPONENTS)
    values, covariance = list(weights.values), [list(row) for row in weights._covariance]
    first = [covariance[index][index] for index in range(size)]
    for _ in range(300):
        prompt = [dice.choice((0.0, 0.0, 0.0, 60_000 * dice.random())) for _ in range(size - 1)] + [1.0]
        spread = [sum(row[i] * prompt[i] for i in range(size)) for row in covariance]
        expected = sum(value * count for value, count in zip(values, prompt, strict=True))
        noise = (0.02 * tokens_of(prompt)) ** 2 + 10**2
        variance = sum(count * part for count, part in zip(prompt, spread, strict=True)) + noise
        found = weights.predict(prompt)
        assert found.tokens == pytest.approx(expected, rel=1e-6, abs=1e-3)
        assert found.sigma == pytest.approx(variance**0.5, rel=1e-6, abs=1e-3)
        true = tokens_of(prompt) * dice.uniform(0.7, 1.4)
        weights.learn(prompt, true)
        most = 4 * variance**0.5
        error = min(max(true - expected, -most), most)
        for i in range(size):
            values[i] += spread[i] / variance * error
            for j in range(size):
                covariance[i][j] -= spread[i] / variance * spread[j]
        for i in range(size):
            covariance[i][i] = min(max(covariance[i][i], 0.0) + first[i] * 0.002**2, first[i])
