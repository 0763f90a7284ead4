"""Scenarios 3, 4, 5 and 21: a request as large as the pool neither starves nor starves the others."""

from collections.abc import Iterator

import pytest

from proxy.admission.limits import Limits
from proxy.admission.types import Lane
from proxy.simulator.mixes import giant
from proxy.simulator.pace import Pace
from proxy.simulator.records import Record, Run
from proxy.simulator.virtual import replay
from proxy.simulator.workload import Workload
from tests.scenarios.hand import POOLS_TOKENS, Hand
from tests.scenarios.policies import (
    Make,
    NewestFirst,
    NoGate,
    NoShortRoom,
    Right,
    StrictOrder,
    UnboundedSkip,
)
from tests.scenarios.traffic import Heads, Watched, machine, scaled, steady

LIMITS = Limits()
SEEDS = (1, 2, 3)
BUSY = 0.85  # of what the machine can do
GIANT_AT = 20.0
OUTPUT_TOKENS = 500
GIANT_TOKENS = 180_000  # of the story's pool


def check_03(make: Make, pool_tokens: int, seed: int) -> None:
    """180K among steady 16K at 85 % load: starts within A + D, and until then others pass it."""
    engine = machine(pool_tokens)
    prompt_tokens = max(9000, scaled(16_000, pool_tokens))
    each_seconds = seconds_each(engine.pace, pool_tokens, prompt_tokens) / BUSY
    mixed = steady("16K", each_seconds, 60, prompt_tokens, OUTPUT_TOKENS, seed=seed)
    run, heads = watched(make, pool_tokens, mixed + giant(GIANT_AT, prompt_tokens=scaled(GIANT_TOKENS, pool_tokens)))
    (big,) = giants(run)
    check_started_in_time(big, heads)
    passed = sum(GIANT_AT < record.sent_at and started(record) < started(big) for record in run.records)
    assert passed > 0, "nobody passes the giant, though tokens are free and it is young"


def check_05(make: Make, pool_tokens: int, seed: int) -> None:
    """A stream of 180Ks under steady shorts: in order, each within A + D, and shorts keep their room."""
    prompt_tokens = scaled(GIANT_TOKENS, pool_tokens)
    mixed = crowd(pool_tokens, 120, seed)
    for number in range(3):
        mixed += giant(GIANT_AT + 30 * number, prompt_tokens=prompt_tokens)
    run, heads = watched(make, pool_tokens, mixed)
    stream = giants(run)
    assert sorted(stream, key=started) == stream, "giants overtake each other"
    alone = machine(pool_tokens).pace.prefill(prompt_tokens, 0)
    slowdown = max(1.0, (stream[0].first_token_at - started(stream[0])) / alone)
    for big in stream:
        check_started_in_time(big, heads, slowdown=slowdown)


def check_05_room(make: Make, pool_tokens: int, giant_share: float) -> None:
    """Beside a giant shorts hold what it leaves of B, at least 4,096 tokens where the pool has them."""
    hand = Hand(make, pool_tokens)
    held = int(pool_tokens * giant_share)
    big = hand.run(held - 200, 200)
    assert hand.sent[big].lane is Lane.GIANT
    left = hand.pool.budget_tokens - held
    room = max(min(left, hand.pool.express_tokens), min(4096, pool_tokens - 2 - held))
    for _ in range(room // 400):
        hand.run(300, 100)
    waiting = hand.arrive(300, 100)
    assert waiting not in hand.sent, "shorts take the giant's room"


def check_21(make: Make, pool_tokens: int, seed: int) -> None:
    """A prompt of all but the whole pool under steady shorts starts within A + D."""
    run, heads = watched(make, pool_tokens, crowd(pool_tokens, 60, seed) + giant(GIANT_AT, prompt_tokens=pool_tokens - 624))
    (big,) = giants(run)
    check_started_in_time(big, heads)
    assert run.retractions == 0


# --- what they are made of --------------------------------------------------------------------


def seconds_each(pace: Pace, pool_tokens: int, prompt_tokens: int) -> float:
    """How often the machine can take such a request, its pool always full."""
    together = LIMITS_SHARE * pool_tokens / (prompt_tokens + OUTPUT_TOKENS)
    decode = OUTPUT_TOKENS * pace.decode(pool_tokens, int(together))
    return pace.prefill(prompt_tokens, 0) + decode / together


LIMITS_SHARE = 1 - LIMITS.pool_headroom
