"""Scenarios 8 and 9: tenants share token-seconds while they wait, and idleness is no credit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.simulator.mixes import longs
from proxy.simulator.records import Record, Run
from proxy.simulator.virtual import replay
from tests.scenarios.hand import POOL_TOKENS, POOLS_TOKENS, Hand
from tests.scenarios.policies import CountsRequests, IdleIsCredit, Make, OneTenant, named
from tests.scenarios.traffic import around, machine, scaled, steady

LIMITS = Limits()
OUTPUT_TOKENS = 400
LANES = ("short", "long")


def check_08(make: Make, pool_tokens: int, lane: str) -> None:
    """One sends ten times as many: while both wait they get the same token-seconds."""
    tokens = 1500 if lane == "short" else max(9000, scaled(16_000, pool_tokens))
    number = 60 if lane == "short" else 12
    few = longs(number, 1, prompt_tokens=tokens, output_tokens=OUTPUT_TOKENS, kind="light", tenant="light")
    many = longs(
        10 * number,
        1,
        prompt_tokens=tokens,
        output_tokens=OUTPUT_TOKENS,
        kind="heavy",
        tenant="heavy",
        stagger_seconds=0.001,
    )
    # slots for thirty: the pool may take all of a wave at once, which is no waiting
    engine = replace(machine(pool_tokens), max_running_requests=30)
    check_shares(replay(few + many, engine, make(LIMITS), conditions=around(pool_tokens)))


def check_08_larger(make: Make, pool_tokens: int) -> None:
    """One sends prompts ten times as large, as many of them: they get the same token-seconds."""
    small = longs(200, 1, prompt_tokens=700, output_tokens=OUTPUT_TOKENS, kind="light", tenant="light")
    large = longs(200, 1, prompt_tokens=7000, output_tokens=OUTPUT_TOKENS, kind="heavy", tenant="heavy")
    engine = replace(machine(pool_tokens), max_running_requests=16)
    check_shares(replay(small + large, engine, make(LIMITS), conditions=around(pool_tokens)))


def check_08_light(make: Make, pool_tokens: int, seed: int) -> None:
    """One floods with 64Ks: the p50 of the other's shorts is what it was, but for a slice."""
    shorts = steady("light", 1.0, 40.0, scaled(300, pool_tokens), 150, seed=seed, tenant="light")
    flood = longs(20, 1, prompt_tokens=scaled(64_000, pool_tokens), tenant="heavy")
    engine = machine(pool_tokens)
    alone = replay(shorts, engine, make(LIMITS), conditions=around(pool_tokens)).of("light")
    beside = replay(shorts + flood, engine, make(LIMITS), conditions=around(pool_tokens)).of("light")
    slower = beside.p50_seconds - alone.p50_seconds
    assert slower <= LIMITS.slice_seconds, f"the light tenant waits {slower:.1f} s longer"


def check_09(make: Make, pool_tokens: int) -> None:
    """A tenant that was idle for ten minutes returns: at most one dispatch more than its share."""
    hand = Hand(make, pool_tokens, max_running_requests=4)
    crowd(hand, "busy", 30)
    crowd(hand, "returning", 5)
    serve(hand, 20)
    while "returning" in {job.request.tenant for job in hand.controller.jobs.values()}:
        serve(hand, 1)
    for _ in range(600):
        crowd(hand, "busy", 1)
        serve(hand, 1)
    crowd(hand, "returning", 20)
    served = serve(hand, 20)
    extra = served.count("returning") - 10
    assert extra <= 1, f"idleness is worth {extra} dispatches"
    assert extra >= -1, f"who returns waits for {-extra} dispatches"


# --- what the checks are made of ----------------------------------------------------------------


def check_shares(run: Run) -> None:
    """Token-seconds while both have somebody waiting."""
    light, heavy = ([record for record in run.records if record.kind == kind] for kind in ("light", "heavy"))
    begins = max(record.sent_at for record in run.records)
    ends = min(max(record.dispatched_at or 0.0 for record in records) for records in (light, heavy))
    assert ends > begins + 1.0, "they do not wait for each other"
    ratio = sum(held(record, begins, ends) for record in heavy) / max(
        1.0, sum(held(record, begins, ends) for record in light)
    )
    assert 0.8 <= ratio <= 1.25, f"one gets {ratio:.2f} times the token-seconds of the other"


def held(record: Record, begins: float, ends: float) -> float:
    if record.dispatched_at is None or record.ended_at is None:
        return 0.0
    seconds = min(ends, record.ended_at) - max(begins, record.dispatched_at)
    return max(0.0, seconds) * (record.prompt_tokens + OUTPUT_TOKENS)


def crowd(hand: Hand, tenant: str, count: int) -> None:
    for _ in range(count):
        hand.arrive(1000, 100, tenant=tenant, name=tenant)


def serve(hand: Hand, count: int) -> list[str]:
    """The oldest of the running end one by one, a second apart; returns the tenants sent for them."""
    order: list[str] = []
    for _ in range(count):
        before = set(hand.sent)
        running = list(hand.pool.jobs)
        hand.started(*running)
        hand.now += 1.0
        hand.finish(running[0], tokens=100)
        order += [rid.split()[0] for rid in hand.sent if rid not in before]
    return order


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("lane", LANES)
def test_two_tenants_that_wait_get_the_same_token_seconds(pool_tokens: int, lane: str) -> None:
    check_08(Controller, pool_tokens, lane)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
def test_larger_requests_get_no_larger_share(pool_tokens: int) -> None:
    check_08_larger(Controller, pool_tokens)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("seed", [1, 2])
def test_shorts_of_a_light_tenant_do_not_notice_a_flood_of_long_prompts(pool_tokens: int, seed: int) -> None:
    check_08_light(Controller, pool_tokens, seed)


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
def test_a_tenant_that_was_idle_gets_no_credit_for_it(pool_tokens: int) -> None:
    check_09(Controller, pool_tokens)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (partial(check_08, pool_tokens=POOL_TOKENS, lane="short"), OneTenant, "times the token-seconds"),
        (partial(check_08, pool_tokens=POOL_TOKENS, lane="long"), OneTenant, "times the token-seconds"),
        (partial(check_08_larger, pool_tokens=POOL_TOKENS), CountsRequests, "times the token-seconds"),
        (partial(check_09, pool_tokens=POOL_TOKENS), IdleIsCredit, "idleness is worth"),
    ],
    ids=named,
)
def test_the_scenarios_of_fairness_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
