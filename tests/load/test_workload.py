import json

import pytest

from tests.load.scenarios import SCENARIOS, Mix, story
from tests.load.workload import Ask, Vocabulary

WORDS = Vocabulary(("alpha", "beta", "gamma"), chat_overhead_tokens=10)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_same_seed_draws_the_same_load_and_another_seed_another(name: str, scale: float) -> None:
    build = SCENARIOS[name].build
    assert build(Mix(seed=4, scale=scale)) == build(Mix(seed=4, scale=scale))
    assert build(Mix(seed=4, scale=scale)) != build(Mix(seed=5, scale=scale))


def test_the_story_is_the_one_that_is_told() -> None:
    asks = story(Mix()).asks
    kinds = [ask.kind for ask in asks]
    assert kinds.count("long") == 12
    assert kinds.count("giant") == 1
    assert 300 < kinds.count("short") < 420  # Poisson, 8/s for 45 s
    assert all(150 <= ask.prompt_tokens <= 450 for ask in asks if ask.kind == "short")


def test_a_prompt_has_one_word_a_token_less_what_the_chat_adds() -> None:
    assert len(WORDS.chat_text(25, seed=1).split()) == 15
    with pytest.raises(ValueError, match="more than 10"):
        WORDS.chat_text(10, seed=1)


def test_a_fixed_output_ignores_the_end_of_the_turn() -> None:
    ask = Ask("short", 20, 150, text_seed=1)
    body = json.loads(ask.body(WORDS, "tiny"))
    assert body["max_tokens"] == 150
    assert body["ignore_eos"]
    assert ask.output_tokens == 150


def test_an_output_that_ends_by_itself_sets_no_limit_and_ends_after_its_minimum() -> None:
    ask = Ask("short", 20, None, text_seed=1, min_tokens=30, ends_by_itself=True)
    body = json.loads(ask.body(WORDS, "tiny"))
    assert "max_tokens" not in body
    assert body["min_tokens"] == 30
    assert ask.output_tokens == 31


def test_an_output_without_any_end_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="without any end"):
        _ = Ask("short", 20, None, text_seed=1).output_tokens
