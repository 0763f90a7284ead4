import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.load.agents import agents
from tests.load.rivals import labelled
from tests.load.scenario import Mix
from tests.load.scenarios import SCENARIOS
from tests.load.simulated import simulated
from tests.load.stories import story
from tests.load.tenants import ALONE, tenants
from tests.load.workload import Ask, Vocabulary

WORDS = Vocabulary(("alpha", "beta", "gamma"), chat_overhead_tokens=10, exchange_overhead_tokens=12)


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
    with pytest.raises(ValueError, match="1 tokens more"):
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


def test_each_turn_of_a_conversation_repeats_the_one_before_and_has_the_length_it_says() -> None:
    first, second, third = (agents(Mix(seed=3)).clients[5].asks)[:3]
    said = [json.loads(ask.body(WORDS, "tiny"))["messages"] for ask in (first, second, third)]
    assert [len(messages) for messages in said] == [1, 3, 5]
    assert said[2][:3] == said[1]
    assert said[1][:1] == said[0]
    assert [message["role"] for message in said[1]] == ["user", "assistant", "user"]
    words = sum(len(message["content"].split()) for message in said[2])
    assert third.prompt_tokens == words + 10 + 2 * 12 == 48_000 + 2 * (300 + 900)


def test_labels_put_shorts_before_longs() -> None:
    asks = labelled(story(Mix(scale=0.3))).asks
    assert {(ask.kind, ask.priority) for ask in asks} == {("short", 1), ("long", 0), ("giant", 0)}
    assert json.loads(asks[0].body(WORDS, "tiny"))["priority"] == 1


def test_the_heavy_tenant_sends_ten_times_as_much() -> None:
    counts = Counter(ask.tenant for ask in tenants(Mix()).asks)
    assert 7 < counts["heavy"] / counts["light"] < 14
    alone = ALONE.change(tenants(Mix()))
    assert {ask.tenant for ask in alone.asks} == {"light"}


def test_the_simulator_is_given_the_same_requests() -> None:
    workload = replace(agents(Mix()), seconds=None)
    virtual = simulated(workload, "agents")
    assert [client.starts_at for client in virtual.clients] == [
        client.start_seconds for client in workload.clients
    ]
    turns = [turn.ask for turn in virtual.clients[0].turns]
    assert [ask.prompt_tokens for ask in turns] == [ask.prompt_tokens for ask in workload.clients[0].asks]
    assert turns[3].spans[: len(turns[2].spans)] == turns[2].spans
    assert virtual.clients[0].turns[1].pause_seconds == 3.0
    with pytest.raises(ValueError, match="no end of the load"):
        simulated(agents(Mix()), "agents")
