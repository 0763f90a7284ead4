"""Scenarios 3, 4, 5 and 21: a request as large as the pool neither starves nor starves others."""

from collections.abc import Callable

import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.types import Lane
from proxy.simulator.mixes import giant
from proxy.simulator.records import Record, Run
from proxy.simulator.virtual import replay
from proxy.simulator.workload import Workload
from tests.scenarios.hand import POOLS_TOKENS, Hand
from tests.scenarios.policies import Make, NewestFirst, NoGate, NoShortRoom, StrictOrder, UnboundedSkip
from tests.scenarios.traffic import Heads, Watched, around, machine, scaled, steady

LIMITS = Limits()
SEEDS = (1, 2, 3)
GIANT_AT = 20.0
GIANT_TOKENS = 180_000  # of the pool of the story
BUSY = 0.85  # of what the machine can do
OUTPUT_TOKENS = 500  # of the 16Ks
# Slices get two fifths of the time at least, while shorts wait for decodes that they would stall.
SLOWEST = 2.5


def check_03(make: Make, pool_tokens: int, seed: int) -> None:
    """180K among steady 16K at 85 % load: it starts within A + D, and some pass it meanwhile."""
    prompt_tokens = max(9000, scaled(16_000, pool_tokens))
    each_seconds = seconds_of_one(pool_tokens, prompt_tokens) / BUSY
    others = steady("16K", each_seconds, 60.0, prompt_tokens, OUTPUT_TOKENS, seed=seed)
    run, heads = play(make, pool_tokens, others + giants(pool_tokens, 1))
    (big,) = giants_of(run)
    check_starts(big, run, heads)
    passed = [record for record in run.records if record.sent_at > GIANT_AT and begun(record) < begun(big)]
    assert passed, "nobody passes the giant, though it is young and tokens are free"


def check_05(make: Make, pool_tokens: int, seed: int) -> None:
    """A stream of 180Ks under steady shorts: in order, and each starts within A + D."""
    stream = giants(pool_tokens, 4, each_seconds=15.0)
    run, heads = play(make, pool_tokens, crowd(pool_tokens, 120.0, seed) + stream)
    bigs = giants_of(run)
    assert bigs == sorted(bigs, key=begun), "giants overtake each other"
    alone = machine(pool_tokens).pace.prefill(bigs[0].prompt_tokens, 0)
    for big in bigs:
        check_starts(big, run, heads)
        assert started(big) - begun(big) <= SLOWEST * alone, "slices take too long"


def check_05_room(make: Make, pool_tokens: int, share: float) -> None:
    """Beside a giant shorts hold what it leaves of B, at least 4,096 tokens where the pool has them."""
    hand = Hand(make, pool_tokens)
    held = int(pool_tokens * share)
    assert hand.sent[hand.run(held - 200, 200)].lane is Lane.GIANT
    left = min(hand.pool.budget_tokens - held, hand.pool.express_tokens)
    room = max(left, min(LIMITS.min_short_room_tokens, pool_tokens - 2 - held))
    for _ in range(room // 400):
        short = hand.arrive(300, 100)
        assert short in hand.sent, "shorts are kept out of their room"
        hand.started(short)
    assert hand.arrive(300, 100) not in hand.sent, "shorts take the giant's room"


def check_21(make: Make, pool_tokens: int, seed: int) -> None:
    """A prompt of nearly the whole pool under steady shorts starts within A + D."""
    big_tokens = pool_tokens - 624
    run, heads = play(
        make, pool_tokens, crowd(pool_tokens, 60.0, seed) + giant(GIANT_AT, prompt_tokens=big_tokens)
    )
    (big,) = giants_of(run)
    check_starts(big, run, heads)


# --- what the checks are made of ----------------------------------------------------------------


def play(make: Make, pool_tokens: int, workload: Workload) -> tuple[Run, Heads]:
    """Replay it; the engine may never have to retract."""
    engine, controller = machine(pool_tokens), make(LIMITS)
    heads = Heads(controller)
    run = replay(workload, engine, Watched(controller, heads.look), conditions=around(pool_tokens))
    assert run.retractions == 0, "the engine had to retract"
    return run, heads


def giants(pool_tokens: int, count: int, each_seconds: float = 0.0) -> Workload:
    tokens = scaled(GIANT_TOKENS, pool_tokens)
    made = [giant(GIANT_AT + each_seconds * number, prompt_tokens=tokens) for number in range(count)]
    return sum(made[1:], start=made[0])


def crowd(pool_tokens: int, seconds: float, seed: int) -> Workload:
    """Shorts that hold a twentieth of the pool: more than there is beside a giant."""
    tokens = min(pool_tokens // 64, 4000)
    each_seconds = 0.25 * tokens / (pool_tokens / 64)
    return steady("short", each_seconds, seconds, tokens - 300, 300, seed=seed, wait_limit_seconds=5.0)


def seconds_of_one(pool_tokens: int, prompt_tokens: int) -> float:
    """The time the machine needs for such a request while its pool is full of them."""
    pace = machine(pool_tokens).pace
    together = (1 - LIMITS.pool_headroom) * pool_tokens / (prompt_tokens + OUTPUT_TOKENS)
    decode_seconds = OUTPUT_TOKENS * pace.decode(pool_tokens, int(together))
    return pace.prefill(prompt_tokens, 0) + decode_seconds / together


def giants_of(run: Run) -> list[Record]:
    return [record for record in run.records if record.kind == "180K"]


def begun(record: Record) -> float:
    assert record.dispatched_at is not None, f"{record.rid} never starts"
    return record.dispatched_at


def started(record: Record) -> float:
    assert record.first_token_at is not None, f"{record.rid} never gets a token"
    return record.first_token_at


def check_starts(big: Record, run: Run, heads: Heads) -> None:
    wait = heads.waits.get(big.rid)
    if wait is None:  # it was sent as it came
        return
    late = begun(big) - wait.latest_start(run, LIMITS.max_bypass_seconds)
    assert late <= 0, f"the giant starves: it starts {late:.1f} s after A + D"


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("check", [check_03, check_05, check_21])
def test_a_giant_starts_within_a_and_the_predicted_drain(
    check: Callable[[Make, int, int], None], seed: int, pool_tokens: int
) -> None:
    check(Controller, pool_tokens, seed)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("share", [0.89, 0.93, 0.966])
def test_shorts_keep_their_room_beside_a_giant(pool_tokens: int, share: float) -> None:
    check_05_room(Controller, pool_tokens, share)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS[:2])
@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (check_03, UnboundedSkip, "the giant starves"),
        (check_03, StrictOrder, "nobody passes the giant"),
        (check_05, UnboundedSkip, "the giant starves"),
        (check_05, NoGate, "the giant starves"),
        (check_05, NewestFirst, "giants overtake each other"),
        (check_21, UnboundedSkip, "the giant starves"),
        (check_21, NoGate, "the giant starves"),
    ],
)
def test_the_scenarios_of_giants_fail_for_wrong_policies(
    check: Callable[[Make, int, int], None], wrong: Make, because: str, pool_tokens: int
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong, pool_tokens, 1)


def test_the_scenario_of_the_room_beside_a_giant_fails_for_wrong_policies() -> None:
    with pytest.raises(AssertionError, match="kept out of their room"):
        check_05_room(NoShortRoom, POOLS_TOKENS[1], 0.966)
