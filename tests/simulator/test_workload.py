import math
from dataclasses import replace
from itertools import pairwise

import pytest

from proxy.simulator.mixes import agents, ending_by_themselves, generous_limits, giant, longs, shorts, story
from proxy.simulator.pace import PACES, pace_of
from proxy.simulator.records import Outcome, Record, Run, kinds_of, quantile
from proxy.simulator.workload import Ask


def test_arrivals_are_poisson_at_the_rate_asked_for() -> None:
    clients = shorts(8, 200, seed=5).clients
    assert len(clients) == pytest.approx(1600, rel=0.1)
    gaps = [later.starts_at - earlier.starts_at for earlier, later in pairwise(clients)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert deviation == pytest.approx(mean, rel=0.15)


def test_a_seed_gives_the_same_workload_and_another_seed_another() -> None:
    assert story(seed=1) == story(seed=1)
    assert story(seed=1) != story(seed=2)


def test_the_story_is_shorts_six_clients_with_two_64k_and_one_180k() -> None:
    clients = story().clients
    assert [len(client.turns) for client in clients if client.name.startswith("64K")] == [2] * 6
    assert [client.starts_at for client in clients if client.name == "180K"] == [8.0]
    lengths = {client.turns[0].ask.prompt_tokens for client in clients if client.name.startswith("short")}
    assert lengths <= set(range(150, 451))


def test_no_two_prompts_of_different_requests_share_a_key() -> None:
    keys = [turn.ask.spans[0][0] for client in story().clients for turn in client.turns]
    assert len(keys) == len(set(keys))


def test_outputs_that_end_by_eos_vary_and_say_no_maximum() -> None:
    asks = [
        turn.ask
        for client in ending_by_themselves(story()).clients
        for turn in client.turns
        if turn.ask.kind == "short"
    ]
    assert {ask.max_tokens for ask in asks} == {None}
    assert not any(ask.ignore_eos for ask in asks)
    lengths = [ask.output_tokens for ask in asks]
    assert sum(lengths) / len(lengths) == pytest.approx(150, rel=0.1)
    assert min(lengths) < 75 < 250 < max(lengths)


def test_generous_limits_allow_far_more_than_is_used() -> None:
    asks = [client.turns[0].ask for client in generous_limits().clients]
    assert {ask.max_tokens for ask in asks} == {8192}
    assert all(100 <= ask.output_tokens <= 6000 for ask in asks)


def test_each_turn_of_an_agent_repeats_all_before_it() -> None:
    turns = agents(1, turns=3).clients[0].turns
    assert [turn.ask.prompt_tokens for turn in turns] == [48_000, 49_200, 50_400]
    assert turns[2].ask.spans[: len(turns[1].ask.spans)] == turns[1].ask.spans
    assert turns[1].ask.spans[1] == (turns[0].ask.output_key, 300)


def test_segments_close_at_512_tokens_and_the_rest_stays_private() -> None:
    ask = Ask("x", (("a", 600), ("b", 300), ("c", 300), ("d", 100)), 1)
    assert [segment.tokens for segment in ask.segments()] == [600, 600]
    longer = replace(ask, spans=(*ask.spans, ("e", 600)))
    assert longer.segments()[:2] == ask.segments()
    other = replace(ask, spans=(("a", 600), ("x", 300), ("c", 300)))
    assert other.segments()[0] == ask.segments()[0]
    assert other.segments()[1] != ask.segments()[1]


def test_workloads_add_up_and_change_as_a_whole() -> None:
    both = (longs(2, 3) + giant(1)).with_wait_limit(5).with_retries(2)
    assert both.requests == 7
    assert {client.retries for client in both.clients} == {2}
    assert {turn.ask.wait_limit_seconds for client in both.clients for turn in client.turns} == {5}


def test_a_pace_has_a_name_or_is_four_numbers() -> None:
    assert pace_of("rtx6000-tp2") == PACES["rtx6000-tp2"]
    assert pace_of("1,2,3,4", speedup=2).prefill_token_seconds == 0.5
    for wrong in ("fast", "1,2,3"):
        with pytest.raises(ValueError, match="h200-8b"):
            pace_of(wrong)
    with pytest.raises(ValueError, match="above 0"):
        pace_of("h200-8b", speedup=0)


def test_a_pace_is_that_of_the_machine_measured() -> None:
    # an H200 with an 8B model: a chunk of 8,192 at depth d thousand costs 0.144 + 0.0080 d seconds
    pace = PACES["h200-8b"]
    assert pace.prefill(8192, 0) == pytest.approx(0.144 + 0.0080 * 4, rel=0.02)
    assert pace.prefill(8192, 100_000) == pytest.approx(0.144 + 0.8 + 0.032, rel=0.02)


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50, 99, 100)
    assert math.isnan(quantile([], 0.5))


def test_a_run_is_summed_up_by_kind_smallest_prompts_first() -> None:
    def record(kind: str, tokens: int, ttft: float | None, outcome: Outcome) -> Record:
        first = None if ttft is None else 10 + ttft
        return Record(
            "r", kind, "c", 10.0, tokens, first_token_at=first, ended_at=20 + tokens, outcome=outcome
        )

    run = Run(
        [
            record("64K", 64_000, 4.0, Outcome.DONE),
            record("short", 100, 1.0, Outcome.DONE),
            record("short", 400, 3.0, Outcome.DONE),
            record("short", 400, None, Outcome.REFUSED),
        ]
    )
    assert run.kinds() == kinds_of(run.records) == ["short", "64K"]
    summary = run.of("short")
    assert (summary.count, summary.refused, summary.mean_seconds, summary.longest_seconds) == (3, 1, 2.0, 3.0)
    assert run.wall_seconds == 64_020
