"""What `explain` says of a request is what happens to it if it comes at that moment."""

import random
from collections import Counter

import pytest

from proxy.admission.controller import Controller
from proxy.admission.job import State
from proxy.admission.limits import Limits
from proxy.admission.types import Arrival, Request
from proxy.admission.view import explain
from tests.scenarios.hand import POOLS_TOKENS, Hand

SHARES = (0.002, 0.01, 0.05, 0.16, 0.35, 0.65, 0.95, 1.1)  # of the pool
STEPS = 60


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS[:2])
def test_what_is_foretold_comes_true(pool_tokens: int, seed: int) -> None:
    dice = random.Random(seed)
    hand = Hand(Controller, pool_tokens, limits=Limits(max_queue_requests=12))
    seen = Counter[str]()
    for _ in range(STEPS):
        tokens = round(dice.choice(SHARES) * pool_tokens)
        output, limit = dice.choice((100, 500, 4000)), dice.choice((5.0, 20.0, 60.0, 600.0))
        asked = Request("asked", tokens, output, ignore_eos=True, wait_limit_seconds=limit)
        told = explain(hand.controller, asked, hand.now)
        rid = hand.arrive(tokens, output, wait_limit_seconds=limit)
        refusal = hand.refused.get(rid)
        happened = "admit" if rid in hand.sent else "queue" if refusal is None else "refuse"
        assert told.decision == happened, (told, refusal, hand.controller.jobs.get(rid))
        if refusal is not None:
            assert (told.reason, told.lane) == (refusal.reason, refusal.lane)
            seen[refusal.reason] += 1
        else:
            assert told.lane is hand.controller.jobs[rid].lane
            if happened == "queue":
                predicted = hand.controller.jobs[rid].predicted_wait_seconds
                assert told.predicted_wait_seconds == pytest.approx(max(0.01, predicted), rel=0.01)
                assert told.in_the_way
        seen[happened] += 1
        live_on(hand, dice)
    assert {"admit", "queue", "would_miss_deadline", "context_length_exceeded"} <= seen.keys(), (
        "too little load"
    )


def test_asking_resets_no_account_of_who_passed_the_head() -> None:
    """The head is b's, since a holds its share already; a's waits first by what was charged."""
    hand = Hand(Controller)
    hand.step(Arrival(Request("holds", 110_000, 4000, ignore_eos=True, tenant="a", weight=1000.0)))
    hand.started("holds")
    hand.run(300, 100, tenant="b")
    for tenant, weight in (("a", 1000.0), ("b", 1.0)):
        hand.step(Arrival(Request(f"waits {tenant}", 90_000, 500, tenant=tenant, weight=weight)))
    line = hand.line
    head = line.longs.head()
    assert head is not None
    assert (head.rid, line.gate.head) == ("waits a", hand.controller.jobs["waits b"])
    line.gate.bypassed_tokens = 1000
    explain(hand.controller, Request("asked", 300, 100, tenant="b"), hand.now)
    assert (line.gate.head, line.gate.bypassed_tokens) == (hand.controller.jobs["waits b"], 1000)


def live_on(hand: Hand, dice: random.Random) -> None:
    """Some of what runs goes on, or ends; time passes."""
    for rid in tuple(hand.sent):
        job = hand.controller.jobs.get(rid)
        if job is not None and job.state is State.PREFILL and dice.random() < 0.5:
            hand.started(rid)
        elif job is not None and job.state is State.DECODE and dice.random() < 0.15:
            hand.finish(rid, tokens=job.request.max_tokens)
    hand.wait(dice.choice((0.25, 0.5, 2.0)))
