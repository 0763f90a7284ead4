"""Scenarios 2 and 22: shorts get in between the slices of a long prompt, and the long gets done."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.mixes import longs
from proxy.simulator.pace import PACES
from proxy.simulator.virtual import replay
from tests.scenarios.hand import POOL_TOKENS, POOLS_TOKENS
from tests.scenarios.policies import Make, NoSlices, ShortsFirst, SlowSlices, named
from tests.scenarios.traffic import around, machine, scaled, steady

LIMITS = Limits()
SEEDS = (1, 2, 3)
SLOW = replace(machine(POOL_TOKENS), pace=PACES["rtx6000-tp2"])  # the machine of the story
LONGS_AT = 5.0


def check_02(make: Make, engine: EngineConfig, seed: int) -> None:
    """20 x 64K at once, a short every second: shorts wait for a slice, longs hardly longer than alone."""
    pool_tokens = engine.pool_tokens
    short_tokens, long_tokens = scaled(300, pool_tokens), scaled(64_000, pool_tokens)
    all_longs = longs(20, 1, prompt_tokens=long_tokens, starts_at=LONGS_AT)
    busy_seconds = 20 * engine.pace.prefill(long_tokens, 0)
    load = all_longs + steady("short", 1.0, LONGS_AT + busy_seconds, short_tokens, 150, seed=seed)
    run = replay(load, engine, make(LIMITS), conditions=around(pool_tokens))
    in_order = replay(load, engine, conditions=around(pool_tokens))
    own_seconds = engine.pace.prefill(short_tokens, 0) + short_tokens * engine.tokenize_token_seconds
    late = run.of("short").p99_seconds - (LIMITS.slice_seconds + own_seconds + 0.2)
    assert late <= 0, f"shorts wait {late:.2f} s longer than for a slice"
    slower = run.of("64K").mean_seconds / in_order.of("64K").mean_seconds - 1
    assert slower <= 0.25, f"longs take {slower:.0%} longer than first come, first served"
    assert run.retractions == 0


def check_22(make: Make, pool_tokens: int, seed: int) -> None:
    """Shorts at 150 % of what prefill can do, and one 64K: its prefill takes at most 2.5 times as long."""
    engine = machine(pool_tokens)
    tokens = min(scaled(2000, pool_tokens), 8000)
    big = longs(1, 1, prompt_tokens=scaled(64_000, pool_tokens), starts_at=LONGS_AT)
    each_seconds = engine.pace.prefill(tokens, 0) / 1.5
    crowd = steady("short", each_seconds, 20.0, tokens, 10, seed=seed, wait_limit_seconds=10.0)
    alone = replay(big, engine, make(LIMITS), conditions=around(pool_tokens)).of("64K").mean_seconds
    run = replay(big + crowd, engine, make(LIMITS), conditions=around(pool_tokens))
    slower = run.of("64K").mean_seconds / alone
    assert slower <= 2.5, f"the prefill of the long takes {slower:.1f} times as long as alone"


@pytest.mark.parametrize("engine", [*map(machine, POOLS_TOKENS), SLOW], ids=[*map(str, POOLS_TOKENS), "slow"])
@pytest.mark.parametrize("seed", SEEDS)
def test_shorts_wait_for_one_slice_of_twenty_long_prompts(engine: EngineConfig, seed: int) -> None:
    check_02(Controller, engine, seed)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_prompt_gets_done_however_many_shorts_come(pool_tokens: int, seed: int) -> None:
    check_22(Controller, pool_tokens, seed)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (partial(check_02, engine=machine(POOL_TOKENS), seed=1), NoSlices, "longer than for a slice"),
        (partial(check_02, engine=SLOW, seed=1), NoSlices, "longer than for a slice"),
        (partial(check_02, engine=machine(POOL_TOKENS), seed=1), SlowSlices, "longs take"),
        (partial(check_22, pool_tokens=POOL_TOKENS, seed=1), ShortsFirst, "times as long as alone"),
    ],
    ids=named,
)
def test_the_scenarios_of_slices_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
