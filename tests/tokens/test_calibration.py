"""Calibration by the server's usage: weights by component, conversations, the trust in exact counts."""

import random

import pytest

from proxy.tokens.calibration import Calibration
from proxy.tokens.composition import COMPONENTS, CONSTANT, DIGITS, TOOLS
from proxy.tokens.measure import Measured, UnitEnd


def composed(tokens: int, kind: str = "ascii", *, whole: bool = True) -> list[float]:
    found = [0.0] * len(COMPONENTS)
    found[COMPONENTS.index(kind)], found[CONSTANT] = tokens, float(whole)
    return found


def prompt(tokens: int = 10_000, kind: str = "ascii") -> Measured:
    return Measured(tokens, composed(tokens, kind))


def turn(*counts: int) -> Measured:
    """A turn whose units end at `counts` tokens; the last opens the reply."""
    ends = [UnitEnd(b"key%d" % index, composed(count, whole=False)) for index, count in enumerate(counts)]
    return Measured(counts[-1], composed(counts[-1]), (), tuple(ends))


def teach(
    calibration: Calibration,
    measured: Measured,
    true: int,
    *,
    times: int = 1,
    model: str = "m",
    key: bytes | None = None,
) -> None:
    for _ in range(times):
        calibration.learn(model, calibration.estimate(model, measured), measured.tokens, true, key)


def learnt(ratio: float, times: int, kind: str = "ascii") -> Calibration:
    calibration = Calibration()
    teach(calibration, prompt(kind=kind), round(10_000 * ratio), times=times)
    return calibration


def tokens(calibration: Calibration, measured: Measured | None = None, model: str = "m") -> int:
    return calibration.estimate(model, measured or prompt()).tokens


def test_an_unknown_model_gets_a_margin_until_twenty_answers() -> None:
    assert tokens(Calibration()) == 11_000
    assert tokens(learnt(1.0, 19)) == 11_000
    assert tokens(learnt(1.0, 20)) == 10_000


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3, 1.9])
def test_the_ratio_is_learnt(ratio: float) -> None:
    assert tokens(learnt(ratio, 50)) == pytest.approx(10_000 * ratio, rel=0.01)


def test_absurd_figures_are_clamped() -> None:
    assert tokens(learnt(100, 2_000)) <= 34_000
    assert tokens(learnt(0.01, 2_000)) == 5_000


def test_a_new_kind_of_text_is_counted_as_it_is_and_learns_its_own_weight() -> None:
    calibration = learnt(1.2, 50)
    teach(calibration, prompt(kind="han"), 9_000, times=20)

    assert tokens(calibration, prompt(kind="han")) == pytest.approx(9_000, rel=0.01)
    assert tokens(calibration) == pytest.approx(12_000, rel=0.01)


def test_a_template_that_leaves_tools_out_is_found_out() -> None:
    calibration, rnd = Calibration(), random.Random(1)
    for _ in range(40):
        text, tools = rnd.randrange(1_000, 5_000), rnd.randrange(1_000, 9_000)
        composition = composed(text)
        composition[TOOLS] = tools
        teach(calibration, Measured(text + tools, composition), text)
    composition = composed(1_000)
    composition[TOOLS] = 9_000

    assert tokens(calibration, Measured(10_000, composition)) == pytest.approx(1_000, abs=60)


def test_a_model_that_takes_digits_one_by_one_is_found_out() -> None:
    calibration, rnd = Calibration(), random.Random(1)
    for _ in range(40):
        text, digits = rnd.randrange(3_000, 9_000), rnd.randrange(0, 9_000)
        composition = composed(text)
        composition[DIGITS] = digits
        teach(calibration, Measured(text, composition), round(text + digits * 2 / 3))
    composition = composed(5_000)
    composition[DIGITS] = 6_000

    assert tokens(calibration, Measured(5_000, composition)) == pytest.approx(9_000, rel=0.01)


def test_models_do_not_mix() -> None:
    assert tokens(learnt(1.5, 50), model="other") == 11_000


def test_a_templates_fixed_text_in_tiny_prompts_does_not_triple_long_ones() -> None:
    calibration = Calibration()
    teach(calibration, prompt(10), 48, times=30)

    assert tokens(calibration) == pytest.approx(10_000, rel=0.05)
    assert tokens(calibration, prompt(10)) == pytest.approx(48, abs=4)


def test_the_weights_follow_a_change() -> None:
    calibration = learnt(1.0, 200)
    teach(calibration, prompt(), 13_000, times=200)

    assert tokens(calibration) == pytest.approx(13_000, rel=0.02)


def test_the_next_turn_is_the_last_ones_true_count_plus_what_is_new() -> None:
    calibration = learnt(1.0, 50)
    teach(calibration, turn(5_000, 5_003), 6_000, key=b"key0")

    assert tokens(calibration, turn(5_000, 5_400, 6_000, 6_003)) == pytest.approx(7_000, rel=0.01)


def test_the_latest_known_turn_counts() -> None:
    calibration = learnt(1.0, 50)
    teach(calibration, turn(5_000, 5_003), 6_000, key=b"key0")
    teach(calibration, turn(5_400, 5_403), 9_000, key=b"key1")

    assert tokens(calibration, turn(5_000, 5_400, 6_000, 6_003)) == pytest.approx(9_600, rel=0.01)


def test_the_same_request_again_is_known_exactly() -> None:
    calibration = learnt(1.0, 50)
    teach(calibration, turn(5_000, 5_400, 6_000, 6_003), 6_543, key=b"key2")

    assert tokens(calibration, turn(5_000, 5_400, 6_000, 6_003)) == 6_543


def test_the_next_turn_teaches_by_what_is_new_in_it() -> None:
    calibration = learnt(1.0, 30)
    teach(calibration, turn(50_000, 50_003), 90_000, key=b"key0")
    before = tokens(calibration)
    teach(calibration, turn(50_000, 51_000, 51_003), 91_000, key=b"key1")

    assert tokens(calibration) == pytest.approx(before, rel=0.02)


def test_the_least_figure_is_below_the_estimate_and_closer_when_more_is_known() -> None:
    cold, warm = Calibration().estimate("m", prompt()), learnt(1.0, 50).estimate("m", prompt())

    assert 5_000 <= cold.least_tokens < warm.least_tokens < warm.tokens
    assert cold.least_tokens < cold.tokens


def test_invented_model_names_do_not_push_out_the_one_in_use() -> None:
    calibration = learnt(1.5, 50)
    for index in range(1_000):
        teach(calibration, prompt(100), 100, model=f"invented{index}")
        if index % 100 == 0:
            teach(calibration, prompt(), 15_000)

    assert tokens(calibration) == pytest.approx(15_000, rel=0.02)
    assert len(calibration.models()) <= 256


def test_noise_averages_out() -> None:
    calibration, rnd = Calibration(), random.Random(1)
    for _ in range(300):
        teach(calibration, prompt(1_000), round(1_200 * rnd.uniform(0.9, 1.1)))

    assert tokens(calibration) == pytest.approx(12_000, rel=0.04)


def test_exact_counts_are_trusted_until_they_turn_out_wrong(caplog: pytest.LogCaptureFixture) -> None:
    calibration = Calibration()
    assert calibration.trusted("m")
    for _ in range(30):
        calibration.learn_exact("m", 10_000, 10_001)
    assert calibration.trusted("m")
    for _ in range(60):
        calibration.learn_exact("m", 10_000, 11_000)

    assert not calibration.trusted("m")
    assert calibration.wrong_by_model("m", 1_000).tokens > 1_050
    assert [record.getMessage()[:29] for record in caplog.records] == ["counts by the tokenizer direc"]


def test_exact_counts_and_estimates_do_not_mix() -> None:
    calibration = learnt(1.5, 50)
    for _ in range(50):
        calibration.learn_exact("m", 10_000, 10_000)

    assert tokens(calibration) == pytest.approx(15_000, rel=0.01)
    assert calibration.samples("m") == 100
