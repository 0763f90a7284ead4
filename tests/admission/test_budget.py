"""The budget follows what the engine shows: it falls at once, and comes back slowly."""

import pytest

from proxy.admission.budget import BUDGET_CUT, BUDGET_FLOOR, BUDGET_RISE
from proxy.admission.controller import Controller
from proxy.admission.types import Finished, Load, LoadSample, PoolUp
from tests.scenarios.hand import POOL, POOL_TOKENS, Hand, facts_of

FULL = int(POOL_TOKENS * 0.97)
POLL_SECONDS = 0.25


def polls(hand: Hand, seconds: float, *, waiting: int, running: int = 1, prefills: bool = False) -> None:
    """The server reports its load four times a second; the ledger says that nothing is foreign."""
    until, total = hand.now + seconds, int(hand.now * 1000)
    while hand.now < until:
        hand.now += POLL_SECONDS
        total += 100 if prefills else 0
        used = sum(job.prompt_tokens for job in hand.pool.jobs.values())
        sample = LoadSample(hand.now, used, running, waiting, 300 * waiting, prefill_tokens_total=total)
        hand.step(Load(POOL, sample))


def test_the_budget_falls_while_the_engine_lets_ours_wait_and_prefills_nothing() -> None:
    hand = Hand(Controller)
    hand.arrive(300, 100)  # sent; its first token does not come
    polls(hand, 3.0, waiting=1)
    assert hand.pool.budget_tokens == int(POOL_TOKENS * 0.97 * BUDGET_CUT)
    polls(hand, 60.0, waiting=1)
    assert hand.pool.budget_tokens == int(POOL_TOKENS * 0.97 * BUDGET_FLOOR)


@pytest.mark.parametrize(
    "what", ["nothing waits", "it prefills", "ours has its token", "its slots are taken", "for a moment"]
)
def test_the_budget_stays_while_the_wait_has_another_reason(what: str) -> None:
    hand = Hand(Controller, max_running_requests=8)
    rid = hand.arrive(300, 100)
    if what == "ours has its token":
        hand.started(rid)
    polls(
        hand,
        1.5 if what == "for a moment" else 30.0,
        waiting=0 if what == "nothing waits" else 3,
        running=8 if what == "its slots are taken" else 1,
        prefills=what == "it prefills",
    )
    assert hand.pool.budget_tokens == FULL


def test_the_budget_stays_while_those_who_go_around_the_proxy_may_be_who_waits() -> None:
    hand = Hand(Controller)
    hand.arrive(300, 100)
    for _ in range(100):
        hand.now += POLL_SECONDS
        hand.step(Load(POOL, LoadSample(hand.now, 170_000, 60, 20, 200_000, prefill_tokens_total=7)))
    assert hand.pool.foreign_tokens > 0
    assert hand.pool.budget_tokens == FULL


def test_the_budget_is_whole_again_when_the_server_comes_back() -> None:
    hand = Hand(Controller)
    hand.arrive(300, 100)
    polls(hand, 3.0, waiting=1)
    assert hand.pool.budget_tokens < FULL
    hand.step(PoolUp(POOL, facts_of(POOL_TOKENS)))
    assert hand.pool.budget_tokens == FULL


def test_the_budget_comes_back_by_a_hundredth_a_quiet_minute() -> None:
    hand = Hand(Controller)
    rid = hand.arrive(300, 100)
    polls(hand, 3.0, waiting=1)
    cut = hand.pool.budget_tokens
    hand.step(Finished(rid, None, 100))
    polls(hand, 59.0, waiting=0, running=0)
    assert hand.pool.budget_tokens == cut
    polls(hand, 3.0, waiting=0, running=0)
    assert hand.pool.budget_tokens == pytest.approx(cut * BUDGET_RISE, abs=1)
