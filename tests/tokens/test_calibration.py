import random

import pytest

from proxy.tokens.calibration import Calibration
from proxy.tokens.chain import Mark
from proxy.tokens.measure import Measured


def learnt(ratio: float, samples: int, *, kind: str = "ascii", model: str = "m") -> Calibration:
    calibration = Calibration()
    for _ in range(samples):
        calibration.learn(model, kind, 10_000, round(10_000 * ratio), None)
    return calibration


def tokens(calibration: Calibration, raw: int = 10_000, *, kind: str = "ascii", model: str = "m") -> int:
    return calibration.estimate(model, Measured(raw, (), (), kind)).tokens


def turn_tokens(calibration: Calibration, *counts: int) -> int:
    """The estimate of a turn whose units end at `counts` tokens; the last opens the reply."""
    return calibration.estimate("m", Measured(counts[-1], (), marks(*counts), "ascii")).tokens


def test_an_unknown_model_gets_a_margin_until_twenty_answers() -> None:
    assert tokens(Calibration()) == 11_000
    assert tokens(learnt(1.0, 19)) == 11_000
    assert tokens(learnt(1.0, 20)) == 10_000


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3, 2.0])
def test_the_ratio_is_learnt(ratio: float) -> None:
    assert tokens(learnt(ratio, 50)) == pytest.approx(10_000 * ratio, rel=0.01)


def test_absurd_figures_are_clamped() -> None:
    assert tokens(learnt(100, 50)) == 30_000
    assert tokens(learnt(0.01, 50)) == 5_000


def test_a_new_class_starts_from_the_models_ratio_and_learns_its_own() -> None:
    calibration = learnt(1.2, 50)
    assert tokens(calibration, kind="han") == pytest.approx(12_000, rel=0.01)
    for _ in range(20):
        calibration.learn("m", "han", 10_000, 9_000, None)
    assert tokens(calibration, kind="han") == pytest.approx(9_000, rel=0.01)
    assert tokens(calibration) == pytest.approx(12_000, rel=0.01)


def test_models_do_not_mix() -> None:
    calibration = learnt(1.5, 50)

    assert tokens(calibration, model="other") == 11_000


def test_a_templates_fixed_text_in_tiny_prompts_does_not_triple_long_ones() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration.learn("m", "ascii", 10, 48, None)

    assert tokens(calibration) < 18_000
    calibration.learn("m", "ascii", 10_000, 10_050, None)
    assert tokens(calibration) == pytest.approx(10_000, rel=0.1)


def test_the_ratio_follows_a_change() -> None:
    calibration = learnt(1.0, 200)
    for _ in range(100):
        calibration.learn("m", "ascii", 10_000, 13_000, None)

    assert tokens(calibration) == pytest.approx(13_000, rel=0.01)


def marks(*counts: int) -> tuple[Mark, ...]:
    return tuple(Mark(b"key%d" % index, count) for index, count in enumerate(counts))


def test_the_next_turn_is_the_last_ones_true_count_plus_what_is_new() -> None:
    calibration = learnt(1.0, 50)
    calibration.learn("m", "ascii", 5_003, 6_000, b"key0")

    assert turn_tokens(calibration, 5_000, 5_400, 6_000, 6_003) == pytest.approx(7_000, rel=0.01)


def test_the_latest_known_turn_counts() -> None:
    calibration = learnt(1.0, 50)
    calibration.learn("m", "ascii", 5_003, 6_000, b"key0")
    calibration.learn("m", "ascii", 5_403, 9_000, b"key1")

    assert turn_tokens(calibration, 5_000, 5_400, 6_000, 6_003) == pytest.approx(9_600, rel=0.01)


def test_the_same_request_again_is_known_exactly() -> None:
    calibration = learnt(1.0, 50)
    calibration.learn("m", "ascii", 6_003, 6_543, b"key2")

    assert turn_tokens(calibration, 5_000, 5_400, 6_000, 6_003) == 6_543


def test_the_least_figure_is_below_the_estimate_and_closer_when_more_is_known() -> None:
    prompt = Measured(1_000, (), (), "ascii")
    cold, warm = Calibration().estimate("m", prompt), learnt(1.0, 50).estimate("m", prompt)

    assert cold.least_tokens < warm.least_tokens < warm.tokens
    assert cold.least_tokens < cold.tokens


def test_invented_model_names_do_not_push_out_the_one_in_use() -> None:
    calibration = learnt(1.5, 50)
    for index in range(2_000):
        calibration.learn(f"invented{index}", "ascii", 100, 100, None)
        if index % 100 == 0:
            calibration.learn("m", "ascii", 10_000, 15_000, None)

    assert tokens(calibration) == pytest.approx(15_000, rel=0.02)
    assert len(calibration.models()) <= 256


def test_noise_averages_out() -> None:
    calibration, rnd = Calibration(), random.Random(1)
    for _ in range(300):
        calibration.learn("m", "ascii", 1_000, round(1_200 * rnd.uniform(0.9, 1.1)), None)

    assert tokens(calibration) == pytest.approx(12_000, rel=0.03)


def test_exact_counts_are_trusted_until_they_turn_out_wrong(caplog: pytest.LogCaptureFixture) -> None:
    calibration = Calibration()
    assert calibration.trusted("m")
    for _ in range(30):
        calibration.learn_exact("m", 10_000, 10_001)
    assert calibration.trusted("m")
    for _ in range(60):
        calibration.learn_exact("m", 10_000, 11_000)

    assert not calibration.trusted("m")
    assert calibration.estimate("m", Measured(1_000, (), (), "exact"), by_model=True).tokens > 1_050
    assert [record.getMessage()[:29] for record in caplog.records] == ["counts by the tokenizer direc"]


def test_exact_counts_and_estimates_do_not_mix() -> None:
    calibration = learnt(1.5, 50)
    for _ in range(50):
        calibration.learn_exact("m", 10_000, 10_000)

    assert tokens(calibration) == pytest.approx(15_000, rel=0.01)
    assert calibration.samples("m") == 100
