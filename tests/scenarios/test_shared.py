"""Scenario 24: a shared prefix is charged once while anybody uses it, and a hold becomes a charge."""

import random
from collections.abc import Callable
from functools import partial

import pytest

from proxy.admission.controller import Controller
from proxy.admission.types import Segment
from tests.scenarios.hand import Hand
from tests.scenarios.policies import (
    EachPays,
    HoldBesideCharge,
    HoldForgotten,
    Make,
    PayerTakesAll,
    named,
)

SEGMENT_TOKENS = 600
PREFIX = tuple(Segment(f"prefix {number}".encode(), SEGMENT_TOKENS) for number in range(5))
PREFIX_TOKENS = SEGMENT_TOKENS * len(PREFIX)
OWN_TOKENS = 400  # of prompt beside the prefix, and of output
OUTPUT_TOKENS = 100


def check_24(make: Make, first_out: int) -> None:
    """Three share a prefix; whoever ends first, what is left is charged once: never twice, never zero."""
    hand = Hand(make)
    users = [share(hand)]
    hand.started(users[0])
    users += [share(hand), share(hand)]
    check_charge(hand, 3, PREFIX_TOKENS)
    hand.started(*users)
    for left, user in zip((2, 1, 0), [users.pop(first_out), *users], strict=True):
        hand.finish(user)
        check_charge(hand, left, PREFIX_TOKENS if left else 0)


def check_24_together(make: Make) -> None:
    """Two come at once: both compute the prefix, then it is there once, and charged once."""
    hand = Hand(make)
    users = [share(hand), share(hand)]
    assert prefix_tokens(hand, 2) == 2 * PREFIX_TOKENS, "both may compute it"
    hand.started(*users)
    check_charge(hand, 2, PREFIX_TOKENS)
    hand.finish(users[0])
    check_charge(hand, 1, PREFIX_TOKENS)


def check_24_mixed(make: Make, seed: int) -> None:
    """Prefixes of all lengths, come and go at random: each segment in use is charged exactly once."""
    rng, hand = random.Random(seed), Hand(make)
    using: dict[str, int] = {}
    for _ in range(200):
        if len(using) < 8 and rng.random() < 0.55:
            count = rng.randint(0, len(PREFIX))
            rid = share(hand, count)
            hand.started(rid)
            using[rid] = count
        elif using:
            rid = rng.choice(sorted(using))
            del using[rid]
            hand.finish(rid)
        check_charge(hand, len(using), SEGMENT_TOKENS * max(using.values(), default=0))


def check_24_hold(make: Make) -> None:
    """A turn ends, its context is held; the next turn takes the hold over: never twice, never zero."""
    hand = Hand(make)
    turn = share(hand, session="talk")
    hand.started(turn)
    hand.finish(turn, tokens=OUTPUT_TOKENS)
    assert hand.pool.committed_tokens == 0
    assert hand.pool.effective_tokens == PREFIX_TOKENS, "the context is not held"
    hand.wait(2.0)
    turn = share(hand, session="talk")
    taken = hand.pool.effective_tokens
    assert taken >= PREFIX_TOKENS + OWN_TOKENS + OUTPUT_TOKENS, "the context is charged to nobody"
    assert taken <= PREFIX_TOKENS + OWN_TOKENS + OUTPUT_TOKENS, "the context is charged twice"
    assert hand.pool.held_tokens == 0
    other = share(hand, session="other")  # of another conversation, with the same beginning
    hand.started(turn, other)
    check_charge(hand, 2, PREFIX_TOKENS)
    hand.finish(turn, other, tokens=OUTPUT_TOKENS)
    assert hand.pool.effective_tokens == PREFIX_TOKENS, "what two hold is not held once"
    hand.wait(60.0)
    assert hand.pool.effective_tokens == 0, "it is held for ever"


# --- what the checks are made of ----------------------------------------------------------------


def share(hand: Hand, count: int = len(PREFIX), session: str = "") -> str:
    """A request that begins with so many segments of the prefix."""
    tokens = count * SEGMENT_TOKENS + OWN_TOKENS
    rid = hand.arrive(tokens, OUTPUT_TOKENS, segments=PREFIX[:count], session=session)
    assert rid in hand.sent
    return rid


def prefix_tokens(hand: Hand, users: int) -> int:
    """What is charged beside each one's own."""
    return hand.pool.committed_tokens - users * (OWN_TOKENS + OUTPUT_TOKENS)


def check_charge(hand: Hand, users: int, expected_tokens: int) -> None:
    charged = prefix_tokens(hand, users)
    assert charged >= expected_tokens, "a prefix in use is charged to nobody"
    assert charged <= expected_tokens, "a prefix is charged twice"


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("first_out", [0, 1, 2])
def test_the_charge_of_a_shared_prefix_passes_on(first_out: int) -> None:
    check_24(Controller, first_out)


def test_a_prefix_that_two_computed_at_once_is_charged_once() -> None:
    check_24_together(Controller)


@pytest.mark.parametrize("seed", range(5))
def test_each_segment_in_use_is_charged_exactly_once(seed: int) -> None:
    check_24_mixed(Controller, seed)


def test_a_hold_becomes_the_charge_of_the_next_turn() -> None:
    check_24_hold(Controller)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (partial(check_24, first_out=0), PayerTakesAll, "charged to nobody"),
        (partial(check_24, first_out=0), EachPays, "charged twice"),
        (check_24_together, EachPays, "charged twice"),
        (partial(check_24_mixed, seed=0), PayerTakesAll, "charged to nobody"),
        (check_24_hold, HoldForgotten, "is not held"),
        (check_24_hold, HoldBesideCharge, "charged twice"),
    ],
    ids=named,
)
def test_the_scenario_of_shared_prefixes_fails_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
