"""Scenarios 16, 17 and 19: who is sent away is told the truth, and comes back when there is room."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.refusal import Returns
from proxy.admission.types import Arrival, Drain, Lane, PoolDown, PoolUp, Reason, Refuse, Request
from proxy.api import answers
from proxy.simulator.mixes import longs
from proxy.simulator.records import Outcome, Record, Run
from proxy.simulator.virtual import replay
from proxy.simulator.workload import Client, Turn, Workload, fixed
from proxy.tokens.shape import Api
from tests.scenarios.hand import POOL, POOLS_TOKENS, Hand, facts_of
from tests.scenarios.policies import (
    DrainedInChorus,
    DrainWaits,
    GuessesByCount,
    Make,
    NeverRefuses,
    PromisesMelt,
    RetryAfterConstant,
    RetryTogether,
    named,
)
from tests.scenarios.traffic import around, machine, scaled, steady

DEADLINE_SECONDS = 5.0
ASKED_AT = 15.0  # two 64Ks have ended by then: the machine's pace is known
OVERLOAD_SECONDS = 60.0
MIDDLE = (9000, 23_000)
HONEST = 0.3  # share by which a prediction may be off


def check_16(make: Make, pool_tokens: int, seed: int) -> None:
    """Deadline 5 s, wait 30 s: refused with an honest Retry-After; who then comes is admitted."""
    (patient,) = ask_in_crowd(make, pool_tokens, seed, {0.0: 600.0})
    assert patient.wait_seconds is not None
    assert patient.wait_seconds > 20.0, "too little load"
    (refused,) = ask_in_crowd(make, pool_tokens, seed, {0.0: DEADLINE_SECONDS})
    assert refused.outcome is Outcome.REFUSED, "it is kept waiting beyond its deadline"
    assert refused.reason == Reason.WOULD_MISS_DEADLINE, "it waits first and is refused then"
    assert refused.predicted_wait_seconds is not None
    error = refused.predicted_wait_seconds / patient.wait_seconds - 1
    assert abs(error) <= HONEST, f"the predicted wait is off by {error:.0%}"
    told = refused.retry_after_seconds
    assert told is not None
    for share, wanted in ((1 - HONEST, Outcome.REFUSED), (1 + HONEST, Outcome.DONE)):
        deadlines = {0.0: DEADLINE_SECONDS, share * told: DEADLINE_SECONDS}
        _, again = ask_in_crowd(make, pool_tokens, seed, deadlines)
        late = "early" if wanted is Outcome.DONE else "late"
        assert again.outcome is wanted, f"it is told to come back too {late}"
    assert again.wait_seconds is not None
    assert again.wait_seconds <= DEADLINE_SECONDS


def check_17(make: Make, prompt_tokens: int) -> None:
    """A hundred are refused at once: they do not come back at once."""
    hand = crowded(make)
    rids = [hand.arrive(prompt_tokens, 500, wait_limit_seconds=DEADLINE_SECONDS) for _ in range(100)]
    refusals = [hand.refused[rid] for rid in rids if rid in hand.refused]
    assert len(refusals) >= 70, "too little load"
    times = [refusal.retry_after_seconds or 0.0 for refusal in refusals]
    service = hand.pool.costs.prefill_seconds(prompt_tokens)
    served = 0.7 * (len(times) - 1) * service
    assert max(times) - min(times) >= served, "they come back faster than they are served"
    assert most_within(times, 0.25) <= 30, "they come back together"
    half = len(times) // 2
    assert fmean(times[half:]) > fmean(times[:half]), "who was refused last comes back first"
    told = [header(refusal, b"retry-after") for refusal in refusals if retries(refusal)]
    assert len(set(told)) > len(told) // 20, "all are told the same second"
    assert all(1 <= int(seconds) <= 60 for seconds in told)


def check_overload(make: Make, prompt_tokens: tuple[int, int], capacity: float, seed: int) -> None:
    """Three times what the server can do for a minute, then a third: who comes back then is served."""
    load = overload(prompt_tokens, capacity, seed)
    run = replay(load, machine(POOLS_TOKENS[1]), make(Limits()))
    back = served_of_those_back(run)
    assert len(back) >= 5, "nobody is told to come back"
    assert fmean(back) >= 0.8, "most of those who come back are refused again"
    late = sum(record.reason == Reason.DEADLINE for record in run.records)
    assert late <= 0.02 * run.count(Outcome.DONE), "who was admitted is refused later"


def check_19(make: Make) -> None:
    """SIGTERM with 10 queued and 2 streaming: the queued get 503 now, the streams end."""
    hand = Hand(make, max_running_requests=2)
    streams = [hand.run(300, 400), hand.run(300, 400)]
    queued = [hand.arrive(300, 100) for _ in range(10)]
    assert not hand.refused
    hand.step(Drain())
    assert set(queued) == set(hand.refused), "queued requests are not answered now"
    refusals = [hand.refused[rid] for rid in queued]
    assert {refusal.reason for refusal in refusals} == {Reason.DRAINING}
    assert {answers.refused(Api.CHAT, refusal, 60.0).status for refusal in refusals} == {503}
    times = [refusal.retry_after_seconds or 0.0 for refusal in refusals]
    assert max(times) - min(times) > 0.3, "they come back together"
    late = hand.arrive(300, 100)
    assert hand.refused[late].reason is Reason.DRAINING, "it takes new requests"
    hand.progress(streams, 200)
    assert set(hand.pool.jobs) == set(streams), "streams are cut off"
    hand.finish(*streams, tokens=400)
    assert not hand.controller.jobs
    assert hand.controller.next_wakeup(hand.now) is None, "something is left to wait for"


# --- what the checks are made of ----------------------------------------------------------------


def overload(prompt_tokens: tuple[int, int], capacity: float, seed: int) -> Workload:
    """`capacity`: about how many of these requests the server does in a second."""
    dice = random.Random(seed)
    clients: list[Client] = []
    for times, begins, ends in ((3.0, 0.0, OVERLOAD_SECONDS), (0.3, OVERLOAD_SECONDS, 150.0)):
        at = begins
        while (at := at + dice.expovariate(times * capacity)) < ends:
            name = f"client {len(clients)}"
            ask = fixed("asking", name, dice.randint(*prompt_tokens), 200)
            clients.append(Client(name, (Turn(replace(ask, wait_limit_seconds=20.0)),), at, retries=30))
    return Workload("overload", tuple(clients))


def served_of_those_back(run: Run) -> list[bool]:
    """Of each that was told to come after the overload, and did: was it served then?"""
    attempts = {(record.client, record.attempt): record for record in run.records}
    return [
        again.outcome is Outcome.DONE
        for record in run.records
        if record.outcome is Outcome.REFUSED
        and record.sent_at + (record.retry_after_seconds or 0.0) >= OVERLOAD_SECONDS
        and (again := attempts.get((record.client, record.attempt + 1)))
    ]


def ask_in_crowd(
    make: Make, pool_tokens: int, seed: int, deadlines_seconds: Mapping[float, float]
) -> list[Record]:
    """Eleven 64Ks are there; others come, so many seconds later, each willing to wait so long."""
    prompt_tokens = scaled(64_000, pool_tokens)
    load = longs(11, 1, prompt_tokens=prompt_tokens)
    load += steady("short", 0.5, 60.0, scaled(300, pool_tokens), 150, seed=seed)
    for after_seconds, deadline_seconds in deadlines_seconds.items():
        name = f"asking {after_seconds}"
        ask = replace(fixed("asking", name, prompt_tokens, 500), wait_limit_seconds=deadline_seconds)
        load += Workload("asking", (Client(name, (Turn(ask),), ASKED_AT + after_seconds),))
    run = replay(load, machine(pool_tokens), make(Limits()), conditions=around(pool_tokens))
    return [record for record in run.records if record.kind == "asking"]


def crowded(make: Make) -> Hand:
    """A pool whose prefill rate is known, and four 64Ks that wait for it."""
    hand = Hand(make)
    for _ in range(2):
        rid = hand.arrive(64_000, 500)
        hand.wait(3.5)
        hand.started(rid)
    assert hand.pool.costs.known
    for _ in range(4):
        hand.arrive(64_000, 500)
    return hand


def most_within(times: list[float], seconds: float) -> int:
    """The most that fall into any stretch of time so long."""
    return max(sum(at <= other < at + seconds for other in times) for at in times)


def header(refusal: Refuse, name: bytes) -> bytes:
    return dict(answers.refused(Api.CHAT, refusal, DEADLINE_SECONDS).headers).get(name, b"")


def retries(refusal: Refuse) -> bool:
    """Is its client told to come back at all?"""
    return header(refusal, b"x-should-retry") != b"false"


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_would_miss_its_deadline_is_refused_and_admitted_when_it_comes_back(
    pool_tokens: int, seed: int
) -> None:
    check_16(Controller, pool_tokens, seed)


@pytest.mark.parametrize("prompt_tokens", [2000, 20_000, 64_000])
def test_a_hundred_that_are_refused_at_once_come_back_one_after_the_other(prompt_tokens: int) -> None:
    check_17(Controller, prompt_tokens)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("prompt_tokens", "capacity"), [((2000, 6000), 4.0), (MIDDLE, 1.3), ((30_000, 70_000), 0.3)]
)
def test_a_crowd_that_was_sent_away_is_served_when_it_comes_back(
    prompt_tokens: tuple[int, int], capacity: float, seed: int
) -> None:
    check_overload(Controller, prompt_tokens, capacity, seed)


def test_who_was_sent_away_from_eight_servers_comes_back_eight_times_as_fast() -> None:
    spread_seconds = {}
    for pools in (1, 8):
        controller = Controller(Limits())
        for number in range(pools):
            controller.step(0.0, PoolUp(f"p{number}", facts_of(POOLS_TOKENS[1])))
            controller.step(0.0, Arrival(Request(f"fills {number}", 150_000, 500)))
        refused = [
            action.retry_after_seconds or 0.0
            for number in range(41)
            for action in controller.step(
                0.1, Arrival(Request(f"asks {number}", 64_000, 500, wait_limit_seconds=1.0))
            )
            if isinstance(action, Refuse)
        ]
        assert len(refused) == 41
        spread_seconds[pools] = refused[-1] - refused[0]
    assert spread_seconds[8] == pytest.approx(spread_seconds[1] / 8, rel=0.01)


def test_who_is_told_too_long_does_not_queue_behind_all_that_were_told_so_before() -> None:
    """Nobody stays away for longer than a minute, so those of an hour ago are in nobody's way."""
    returns = Returns()
    told = [returns.seconds(float(second), 100.0, 10.0) for second in range(3600)]
    assert told[:3] == [100.0, 111.5, 123.0]
    assert max(told) <= 100.0 + 60 * 12.5


def test_a_crowd_before_one_model_keeps_nobody_away_from_another() -> None:
    controller = Controller(Limits())
    for model in ("crowded", "other"):
        controller.step(0.0, PoolUp(model, replace(facts_of(POOLS_TOKENS[1]), models=(model,))))
        controller.step(0.0, Arrival(Request(f"fills {model}", 150_000, 500, model=model)))

    def refused(rid: str, model: str) -> float:
        asked = Request(rid, 64_000, 500, model=model, wait_limit_seconds=1.0)
        (refusal,) = controller.step(0.1, Arrival(asked))
        assert isinstance(refusal, Refuse)
        return refusal.retry_after_seconds or 0.0

    first, *_, last = [refused(f"crowd {number}", "crowded") for number in range(50)]
    assert last > first + 60.0
    assert refused("one", "other") == pytest.approx(first, abs=0.1)


def test_draining_answers_the_queued_now_and_lets_streams_end() -> None:
    check_19(Controller)


def test_a_queue_full_of_longs_refuses_no_short_that_goes_at_once() -> None:
    hand = Hand(Controller, limits=Limits(max_queue_requests=2))
    hand.run(120_000, 500)
    waiting = [hand.arrive(100_000, 500) for _ in range(2)]
    assert not hand.refused
    assert hand.arrive(300, 100) in hand.sent
    late = hand.arrive(100_000, 500)
    assert hand.refused[late].reason is Reason.QUEUE_FULL
    assert len(hand.line) == len(waiting)


def test_who_no_pool_takes_is_counted_in_the_lane_of_its_size() -> None:
    hand = Hand(Controller, POOLS_TOKENS[1])
    rids = {hand.arrive(2 * POOLS_TOKENS[1], 500): Lane.GIANT, hand.arrive(300, 5_000_000): Lane.SHORT}
    hand.step(PoolDown(POOL))
    rids |= {hand.arrive(64_000, 500): Lane.LONG, hand.arrive(300, 100): Lane.SHORT}
    hand.step(Drain())
    rids |= {hand.arrive(64_000, 500): Lane.LONG, hand.arrive(300, 100): Lane.SHORT}
    assert {rid: refusal.lane for rid, refusal in hand.refused.items()} == rids
    assert len({refusal.reason for refusal in hand.refused.values()}) == 3


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (
            partial(check_16, pool_tokens=POOLS_TOKENS[1], seed=1),
            NeverRefuses,
            "beyond its deadline|waits first",
        ),
        (partial(check_16, pool_tokens=POOLS_TOKENS[1], seed=1), RetryAfterConstant, "come back too early"),
        (partial(check_16, pool_tokens=POOLS_TOKENS[1], seed=1), GuessesByCount, "predicted wait is off"),
        (partial(check_17, prompt_tokens=20_000), RetryAfterConstant, "faster than they are served"),
        (partial(check_17, prompt_tokens=20_000), RetryTogether, "faster than they are served"),
        (partial(check_17, prompt_tokens=2000), RetryAfterConstant, "come back together|faster"),
        (partial(check_overload, prompt_tokens=MIDDLE, capacity=1.3, seed=1), PromisesMelt, "refused again"),
        (partial(check_overload, prompt_tokens=MIDDLE, capacity=1.3, seed=1), RetryTogether, "refused again"),
        (check_19, DrainWaits, "not answered now"),
        (check_19, DrainedInChorus, "come back together"),
    ],
    ids=named,
)
def test_the_scenarios_of_refusals_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
