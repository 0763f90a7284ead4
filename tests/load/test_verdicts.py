"""The verdicts of the scenarios, on runs made up to pass or fail them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.load.agents import AGENTS, OUTPUT_TOKENS, bound, judge_agents
from tests.load.decisions import Decision, read_decisions
from tests.load.figures import Row, Run
from tests.load.outcome import Outcome
from tests.load.overload import capacity, judge_overload
from tests.load.sampler import Sample
from tests.load.stories import judge_shorts_only, judge_true_speed
from tests.load.tenants import judge_tenants

WANTED = Outcome(
    kind="short",
    attempt=1,
    started_at=0.0,
    stream=True,
    want_prompt_tokens=20,
    want_output_tokens=5,
    status=200,
    sent_at=0.0,
    first_at=1.0,
    ended_at=2.0,
    prompt_tokens=20,
    completion_tokens=5,
)
LEDGER = {"committed_tokens": 0.0}
SAMPLES = [Sample(0.0, 0.0, 1, 0, 10, 0)]


def served(kind: str, ttft: float, *, at: float = 0.0, client: int = 0, turn: int = 0) -> Outcome:
    return replace(
        WANTED,
        kind=kind,
        client=client,
        turn=turn,
        started_at=at,
        sent_at=at,
        first_at=at + ttft,
        ended_at=at + ttft + 1.0,
    )


def run(outcomes: Sequence[Outcome], decisions: Sequence[Decision] = ()) -> Run:
    return Run(outcomes, SAMPLES, 0, 0, ledger=LEDGER, decisions=decisions)


def verdict(rows: Sequence[Row], figure: str) -> bool | None:
    (found,) = [row.ok for row in rows if row.figure.startswith(figure)]
    return found


# --- stories --------------------------------------------------------------------------------------


def test_shorts_alone_may_cost_ten_milliseconds_more() -> None:
    direct = run([served("short", 0.030)])
    for ttft, ok in ((0.039, True), (0.041, False)):
        rows = judge_shorts_only({"direct": direct, "proxied": run([served("short", ttft)])})
        assert verdict(rows, "short TTFT p99") is ok


def test_the_rival_is_judged_only_where_it_was_played() -> None:
    kinds = {"short": 0.1, "long": 2.0, "giant": 5.0}
    slow = run([served(kind, 20 * ttft) for kind, ttft in kinds.items()])
    fast = run([served(kind, ttft) for kind, ttft in kinds.items()])
    runs = {"direct": slow, "proxied": fast}
    assert not [row for row in judge_true_speed(runs) if "against" in row.figure]
    rows = judge_true_speed(runs | {"shortest-prefill-first": slow})
    assert verdict(rows, "180K TTFT, against") is True
    rows = judge_true_speed(runs | {"shortest-prefill-first": fast})
    assert verdict(rows, "180K TTFT, against") is False


# --- agents -----------------------------------------------------------------------------------------


def agents_run(turns: int, ttft: float, *, forecast: float = 1.0, without: int | None = None) -> Run:
    """Every agent but one does its turns, the last of them after 100 s."""
    outcomes = [
        replace(served("turn", ttft, at=100.0 - ttft - 1.0, client=number, turn=turn), cut=number == without)
        for number in range(AGENTS)
        for turn in range(turns)
    ]
    decision = Decision(True, "default", "long", 48_000, 20.0, 20.0 * forecast)
    return run(outcomes, [decision])


def agents_rows(proxied: Run) -> list[Row]:
    runs = {"direct": agents_run(1, 50.0), "lpm": agents_run(2, 10.0), "proxied, no keys": agents_run(4, 5.0)}
    return judge_agents(runs | {"proxied": proxied})


def test_agents_are_held_to_turns_a_second() -> None:
    rows = agents_rows(agents_run(3, 5.0))
    assert verdict(rows, "turns/s : first come, first served (keyed)") is True
    assert verdict(rows, "turns/s : lpm (keyed)") is True
    assert verdict(agents_rows(agents_run(2, 5.0)), "turns/s : lpm (keyed)") is False
    assert 0.2 < bound() < 1.0
    assert OUTPUT_TOKENS == 300


def test_one_agent_left_out_fails_them_all() -> None:
    rows = agents_rows(agents_run(3, 5.0, without=7))
    assert verdict(rows, "turns of the unluckiest agent (keyed)") is False


def test_a_wait_of_more_than_three_equal_shares_fails() -> None:
    assert verdict(agents_rows(agents_run(4, 60.0)), "longest wait (keyed)") is True  # a share is 25 s
    assert verdict(agents_rows(agents_run(4, 80.0)), "longest wait (keyed)") is False


def test_a_forecast_far_off_fails() -> None:
    assert verdict(agents_rows(agents_run(3, 5.0, forecast=1.5)), "forecast") is True
    assert verdict(agents_rows(agents_run(3, 5.0, forecast=0.3)), "forecast") is False


# --- tenants ----------------------------------------------------------------------------------------


def test_the_light_tenant_is_held_to_its_time_alone() -> None:
    def of(light: float) -> Run:
        return run([served("light short", light), served("light 16K", 1.0), served("heavy short", 9.0)])

    for ttft, ok in ((0.12, True), (0.14, False)):
        rows = judge_tenants({"direct": of(5.0), "alone": of(0.1), "proxied": of(ttft)})
        assert verdict(rows, "light short TTFT p50, against alone") is ok


# --- overload ---------------------------------------------------------------------------------------


def overloaded(*, wait: float = 5.0, told: float = 0.01, back: bool = True, ends: int = 60) -> dict[str, Run]:
    """One request a second can be served; `ends` of them are during sixty seconds of overload."""
    batch = [served("batch", 1.0, at=number - 1.0) for number in range(60)]
    outcomes = [served("overload", 1.0, at=number * 60 / ends - 1.0, client=number) for number in range(ends)]
    for outcome in outcomes:
        outcome.headers = {"x-admission-wait-ms": str(1000 * wait)}
    outcomes.append(served("relief", 1.0, at=60.0, client=98))
    refusal = replace(WANTED, kind="overload", client=99, status=429, sent_at=50.0, ended_at=50.0 + told)
    refusal.headers = {"retry-after": "15", "x-admission-reason": "would_miss_deadline"}
    again = replace(refusal, attempt=2, status=200 if back else 429, sent_at=65.99, ended_at=66.0)
    return {"capacity": run(batch), "proxied": run([*outcomes, refusal, again])}


def test_capacity_is_measured_while_there_is_something_to_do() -> None:
    assert capacity(overloaded()["capacity"]) == pytest.approx(25.0, rel=0.1)


def test_overload_is_judged_by_each_of_its_promises() -> None:
    figures = ("admitted within 20 s", "refused after the last byte", "back after", "goodput")
    for runs, failing in (
        (overloaded(), None),
        (overloaded(wait=21.0), "admitted within 20 s"),
        (overloaded(told=0.06), "refused after the last byte"),
        (overloaded(back=False), "back after"),
        (overloaded(ends=40), "goodput"),
    ):
        rows = judge_overload(runs)
        expected = {figure: figure != failing for figure in figures}
        assert {figure: verdict(rows, figure) for figure in figures} == expected, failing


# --- the decision log ---------------------------------------------------------------------------------


def test_decisions_are_read_from_the_proxys_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl"
    path.write_text(
        '{"event":"dispatch","tenant":"a","lane":"long","prompt_tokens":9,"waited_s":1.0,"predicted_wait_s":2.0}\n'
        '{"event":"finish","rid":"x"}\n'
        '{"event":"refuse","tenant":"a","lane":"long","prompt_tokens":9,"waited_s":0.0,"predicted_wait_s":null,'
        '"reason":"queue_full"}\n'
    )
    assert read_decisions(path) == [
        Decision(True, "a", "long", 9, 1.0, 2.0),
        Decision(False, "a", "long", 9, 0.0, None, "queue_full"),
    ]
