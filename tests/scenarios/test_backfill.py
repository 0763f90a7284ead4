"""Scenarios 6, 7 and 23: who goes while a long head is blocked, and when the slots are what is full."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from proxy.admission.backfill import Rule
from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.view import pool_view
from proxy.simulator.virtual import replay
from tests.scenarios.hand import POOLS_TOKENS, Hand
from tests.scenarios.policies import (
    BudgetForEver,
    EngineQueue,
    GateSaysNothing,
    LateBackfill,
    Make,
    NoSlotsForShorts,
    OneSlotEach,
    StrictOrder,
    UnboundedSkip,
    named,
)
from tests.scenarios.traffic import machine, steady

LIMITS = Limits()
PASSING_TOKENS = 2500  # of a short that passes the head and outlasts the resident


def check_06(make: Make, pool_tokens: int, age_seconds: float) -> None:
    """A head is blocked; a short that fits and ends before t* goes in the same tick, gate or not."""
    hand = blocked_head(make, pool_tokens, left_tokens=4000)
    hand.wait(age_seconds)
    short = hand.arrive(300, 50)
    assert short in hand.sent, "a short that delays nobody waits"
    assert hand.sent[short].rule == Rule.ENDS_BEFORE
    assert hand.line.longs.head() is not None, "the head was to stay blocked"


def check_07(make: Make, pool_tokens: int) -> None:
    """The bypass budget is used up: the next short outside the share waits, and the gate says so."""
    hand = blocked_head(make, pool_tokens, left_tokens=200)
    before = hand.pool.committed_tokens
    assert not gate_closed(hand), "the gate is closed too early"
    last = pass_head(hand)
    bypassed = hand.pool.committed_tokens - before
    budget = LIMITS.bypass_budget * hand.pool.budget_tokens
    assert bypassed <= budget, "more passes the head than the budget allows"
    assert bypassed > budget - PASSING_TOKENS, "the budget is not used"
    assert gate_closed(hand), "the gate is closed and does not say so"
    hand.wait(1.0)
    assert last not in hand.sent, "the next short does not wait"


def check_07_reopens(make: Make, pool_tokens: int) -> None:
    """The head starts: the gate opens, and who waited goes."""
    hand = blocked_head(make, pool_tokens, left_tokens=200)
    last, head = pass_head(hand), hand.line.longs.head()
    assert head is not None
    hand.finish(*hand.pool.jobs)
    assert head.rid in hand.sent, "the head does not start when there is room"
    hand.started(head.rid)
    assert last in hand.sent, "who waited for the head goes on waiting"
    assert not gate_closed(hand), "the gate is open and says that it is closed"


def check_23_slots(make: Make, slots: int) -> None:
    """Slots are full, tokens free: nothing goes that would queue in the engine; shorts keep a tenth."""
    hand = Hand(make, 1_000_000, max_running_requests=slots)
    for_longs = slots - max(1, slots // 10)
    longs = [hand.arrive(9000, 500, name="long") for _ in range(slots)]
    hand.started(*longs)
    running = sum(long in hand.sent for long in longs)
    assert running <= for_longs, "longs take the slots kept for shorts"
    assert running == for_longs, "slots stay empty"
    shorts = [hand.arrive(300, 100) for _ in range(slots)]
    hand.started(*shorts)
    passed = sum(short in hand.sent for short in shorts)
    assert passed <= slots - for_longs, "it would queue in the engine"
    assert passed == slots - for_longs, "shorts are kept out of their slots"
    hand.finish(shorts[0])
    assert shorts[passed] in hand.sent, "a slot is free and nobody takes it"


def check_23_sequences(make: Make) -> None:
    """Every choice of n and every item of a batch takes a slot."""
    hand = Hand(make, 1_000_000, max_running_requests=20)
    first = hand.run(300, 100, sequences=12)
    assert hand.arrive(300, 100, sequences=9) not in hand.sent, "it would queue in the engine"
    assert hand.arrive(300, 100, sequences=8) in hand.sent, "slots stay empty"
    hand.finish(first)


def check_23_reserves(make: Make) -> None:
    """Tokens are free by our ledger; what the engine counts for running outputs fills the pool.

    Thirty chats without a limit that are known to end soon: about 10K of ours, 86K of the engine's.
    """
    hand = Hand(make, 100_000)
    for _ in range(20):  # outputs are known to be short
        hand.finish(hand.run(300, None), tokens=50)
    for _ in range(30):
        hand.run(300, None)
    assert hand.pool.committed_tokens < 12_000
    assert hand.arrive(40_000, 500) not in hand.sent, "it would queue in the engine"
    assert hand.arrive(1000, 500) in hand.sent, "a short that the engine would take waits"


def check_23_engine(make: Make, slots: int, seed: int) -> None:
    """The same on the engine: it never has more requests than slots."""
    engine = replace(machine(POOLS_TOKENS[1]), max_running_requests=slots)
    load = steady("short", 0.8 / slots, 8.0, 300, 600, seed=seed)
    run = replay(load, engine, make(LIMITS))
    most = max(sample.running + sample.waiting for sample in run.samples)
    assert most <= slots, "it queues in the engine"
    assert most == slots, "slots stay empty"


# --- what the checks are made of ----------------------------------------------------------------


def blocked_head(make: Make, pool_tokens: int, *, left_tokens: int) -> Hand:
    """A long that has `left_tokens` to produce, shorts that last for long in the share kept for shorts,
    and a head that needs all but that share."""
    hand = Hand(make, pool_tokens)
    resident = hand.run(int(0.3 * pool_tokens) - 4000, 4000, name="resident")
    hand.progress([resident], 4000 - left_tokens)
    while (left := hand.pool.express_tokens - hand.pool.short_tokens) >= 200:
        hand.run(100, min(left - 100, 8000), name="lasting")
    need = hand.pool.budget_tokens - hand.pool.express_tokens
    head = hand.arrive(need - 600, 500, name="head")
    assert head not in hand.sent
    return hand


def pass_head(hand: Hand) -> str:
    """Shorts that outlast the resident come until one has to wait; returns that one."""
    while (short := hand.arrive(1000, PASSING_TOKENS - 1000)) in hand.sent:
        hand.started(short)
    return short


def gate_closed(hand: Hand) -> bool:
    """What the metric `gate_closed` shows."""
    return pool_view(hand.line, hand.now).gate_closed


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("age_seconds", [0.0, 20.0])
def test_a_short_that_ends_before_the_head_can_start_goes_at_once(
    pool_tokens: int, age_seconds: float
) -> None:
    check_06(Controller, pool_tokens, age_seconds)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("check", [check_07, check_07_reopens])
def test_the_gate_closes_when_the_bypass_budget_is_used_up_and_opens_with_the_next_head(
    check: Callable[[Make, int], None], pool_tokens: int
) -> None:
    check(Controller, pool_tokens)


@pytest.mark.parametrize("slots", [10, 20, 64])
def test_with_all_slots_full_nothing_is_sent_and_shorts_keep_a_tenth_of_them(slots: int) -> None:
    check_23_slots(Controller, slots)


def test_each_sequence_takes_a_slot() -> None:
    check_23_sequences(Controller)


def test_what_the_engine_reserves_for_running_outputs_counts() -> None:
    check_23_reserves(Controller)


@pytest.mark.parametrize("slots", [8, 32])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_engine_never_has_more_requests_than_slots(slots: int, seed: int) -> None:
    check_23_engine(Controller, slots, seed)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (partial(check_06, pool_tokens=186_624, age_seconds=0.0), StrictOrder, "delays nobody"),
        (partial(check_06, pool_tokens=186_624, age_seconds=20.0), LateBackfill, "delays nobody"),
        (partial(check_07, pool_tokens=186_624), UnboundedSkip, "more passes the head"),
        (partial(check_07, pool_tokens=186_624), StrictOrder, "the budget is not used"),
        (partial(check_07, pool_tokens=186_624), GateSaysNothing, "does not say so"),
        (partial(check_07_reopens, pool_tokens=186_624), BudgetForEver, "says that it is closed"),
        (partial(check_23_slots, slots=20), EngineQueue, "slots kept for shorts"),
        (partial(check_23_slots, slots=20), NoSlotsForShorts, "slots kept for shorts"),
        (check_23_sequences, EngineQueue, "would queue in the engine"),
        (check_23_sequences, OneSlotEach, "would queue in the engine"),
        (check_23_reserves, EngineQueue, "would queue in the engine"),
        (partial(check_23_engine, slots=8, seed=1), EngineQueue, "queues in the engine"),
    ],
    ids=named,
)
def test_the_scenarios_of_blocked_heads_and_full_slots_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
