import random

import pytest

from proxy.admission.costs import CostModel

A, B = 17.6e-6, 0.977e-9  # an 8B model on an H200


def taught(noise: float = 0.0) -> CostModel:
    model, draw = CostModel(), random.Random(1)
    for _ in range(60):
        tokens, depth = draw.randint(1024, 8192), draw.randint(0, 170_000)
        seconds = tokens * (A + B * (depth + tokens / 2))
        model.learn_prefill(tokens, depth + tokens / 2, seconds * draw.uniform(1 - noise, 1 + noise))
    return model


def test_the_curve_is_learnt_from_slices_at_any_depth() -> None:
    model = taught()
    for tokens, depth in ((8192, 0), (8192, 100_000), (64_000, 0), (180_000, 0)):
        truth = tokens * (A + B * (depth + tokens / 2))
        assert model.prefill_seconds(tokens, depth) == pytest.approx(truth, rel=0.02)


def test_noise_of_a_fifth_leaves_long_predictions_within_a_tenth() -> None:
    truth = 180_000 * (A + B * 90_000)
    assert taught(0.2).prefill_seconds(180_000) == pytest.approx(truth, rel=0.1)


def test_how_much_fits_into_a_time_is_the_inverse() -> None:
    model = taught()
    tokens = model.prefill_tokens_within(0.25, 60_000)
    assert model.prefill_seconds(tokens, 60_000) == pytest.approx(0.25, rel=0.01)


def test_nothing_is_known_before_a_chunk_or_two_was_seen() -> None:
    model = CostModel()
    assert not model.known
    model.learn_prefill(8192, 4096, 0.2)
    model.learn_prefill(8192, 12_288, 0.2)
    assert model.known


def test_short_prefills_teach_nothing_since_they_time_the_overhead() -> None:
    model = CostModel()
    before = model.prefill_seconds(8192)
    model.learn_prefill(100, 50, 1.0)
    assert model.prefill_seconds(8192) == before


def test_one_stalled_stream_does_not_make_decoding_look_hopeless() -> None:
    model = CostModel()
    for _ in range(100):
        model.learn_decode(25, 0.25)
    model.learn_decode(1, 2.0)
    assert model.seconds_per_decode_token < 0.03
