"""Traffic that bypasses the proxy is in the way, and no ending of ours makes it go: forecasts say so."""

from collections.abc import Callable

import pytest

from proxy.admission.controller import Controller
from proxy.admission.types import Reason, Request
from proxy.admission.view import Explanation, explain
from tests.scenarios.hand import POOLS_TOKENS, Hand
from tests.scenarios.policies import AllWaitForForeign, ForeignLeavesAtOnce, ForeignStays, Make, named

HONEST = 0.5  # share by which the forecast may be off: half-way is when it is best known
LIMIT_SECONDS = 60.0


def check_lasting(make: Make, pool_tokens: int) -> None:
    """It has stood for ten minutes: a giant is told at once that it would wait, and how long."""
    hand = known(make, pool_tokens)
    see_foreign(hand, pool_tokens // 2, seconds=600.0)
    told = ask(hand, giant(pool_tokens))
    assert told.decision == "refuse", "a giant is promised what is not ours to give"
    assert any("bypasses the proxy" in words for words in told.in_the_way), (
        "it is not told what is in the way"
    )
    rid = hand.arrive(giant(pool_tokens), 500, wait_limit_seconds=LIMIT_SECONDS)
    assert rid in hand.refused, "a giant waits for what is not ours to give"
    refusal = hand.refused[rid]
    assert refusal.reason is Reason.WOULD_MISS_DEADLINE
    assert abs(refusal.predicted_wait_seconds / 600.0 - 1) <= HONEST, "it is told another wait"
    assert (refusal.retry_after_seconds or 0.0) > LIMIT_SECONDS, "it comes back too early"


def check_brief(make: Make, pool_tokens: int) -> None:
    """It has just come, and may be gone as soon: a giant may wait for that, and is admitted then."""
    hand = known(make, pool_tokens)
    see_foreign(hand, pool_tokens // 32, seconds=600.0)  # some of it has always been there
    see_foreign(hand, pool_tokens // 2, seconds=5.0)
    rid = hand.arrive(giant(pool_tokens), 500, wait_limit_seconds=LIMIT_SECONDS)
    assert rid not in hand.refused, "a giant is refused for what may be gone in a moment"
    assert hand.controller.jobs[rid].predicted_wait_seconds > 1.0, "it is promised to go at once"
    see_foreign(hand, 0, seconds=1.0)
    assert rid in hand.sent


def check_beside(make: Make, pool_tokens: int) -> None:
    """What fits beside it waits for nobody."""
    hand = known(make, pool_tokens)
    see_foreign(hand, pool_tokens // 2, seconds=600.0)
    for prompt_tokens in (300, pool_tokens // 4):
        told = ask(hand, prompt_tokens)
        assert told.decision == "admit", f"{prompt_tokens} tokens are told to wait"
        assert told.predicted_wait_seconds == 0.0
    shorts = [hand.arrive(300, 4000) for _ in range(pool_tokens // 4000)]
    assert not hand.refused, "shorts are told to wait until the others have gone"
    waits = [
        hand.line.predicted_wait(hand.controller.jobs[rid], hand.now)
        for rid in shorts
        if still_waits(hand, rid)
    ]
    assert waits, "too little load"
    assert max(waits) < 300.0, "shorts are told to wait until the others have gone"


# --- what the checks are made of ----------------------------------------------------------------


def known(make: Make, pool_tokens: int) -> Hand:
    """A pool whose prefill rate is known, with nothing in it."""
    hand = Hand(make, pool_tokens)
    for _ in range(2):
        rid = hand.arrive(pool_tokens // 4, 500)
        hand.wait(3.5)
        hand.started(rid)
        hand.finish(rid, tokens=500)
    assert hand.pool.costs.known
    return hand


def giant(pool_tokens: int) -> int:
    return round(0.9 * pool_tokens)


def see_foreign(hand: Hand, tokens: int, *, seconds: float) -> None:
    """So long, each poll shows that many tokens of others beside ours."""
    until = hand.now + seconds
    while hand.now < until:
        hand.wait(0.25 if seconds < 30 else 1.0)
        hand.poll(hand.pool.used_tokens + tokens)


def ask(hand: Hand, prompt_tokens: int) -> Explanation:
    request = Request("asked", prompt_tokens, 500, ignore_eos=True, wait_limit_seconds=LIMIT_SECONDS)
    return explain(hand.controller, request, hand.now)


def still_waits(hand: Hand, rid: str) -> bool:
    return rid not in hand.sent and rid not in hand.refused


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("check", [check_lasting, check_brief, check_beside], ids=named)
def test_a_forecast_counts_with_traffic_that_bypasses_the_proxy(
    check: Callable[[Make, int], None], pool_tokens: int
) -> None:
    check(Controller, pool_tokens)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (check_lasting, ForeignLeavesAtOnce, "promised what is not ours"),
        (check_brief, ForeignStays, "gone in a moment"),
        (check_beside, AllWaitForForeign, "until the others have gone"),
    ],
    ids=named,
)
def test_the_scenarios_of_foreign_traffic_fail_for_wrong_forecasts(
    check: Callable[[Make, int], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong, POOLS_TOKENS[1])
