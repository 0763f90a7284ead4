"""Scenarios 12 to 15: the ledger follows what the streams, the polls and the server show."""

from collections.abc import Callable
from functools import partial

import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.sensor import FOREIGN_DEADBAND_TOKENS
from proxy.admission.types import Finished, Gone, PoolDown, PoolUp, Reason, Segment
from proxy.simulator.conditions import Conditions, Restart
from proxy.simulator.mixes import story
from proxy.simulator.records import Outcome, Run, quantile
from proxy.simulator.virtual import replay
from proxy.simulator.workload import Workload
from tests.scenarios.hand import POOL, POOL_TOKENS, POOLS_TOKENS, Hand, facts_of
from tests.scenarios.policies import (
    BelievesAnyPoll,
    ForeignAdds,
    ForeignBehindReserves,
    Make,
    NoBudget,
    NoDrift,
    NoReserveGrowth,
    OldFacts,
    PollIsLedger,
    RestartRefusesAll,
    named,
)
from tests.scenarios.traffic import machine, steady

RESERVE_TOKENS = 200  # what outputs were, until now


def check_12(make: Make, pool_tokens: int) -> None:
    """Outputs of three times their reserve: the ledger grows, admission pauses, and recovers."""
    hand = Hand(make, pool_tokens)
    for _ in range(20):
        hand.finish(hand.run(300, None), tokens=RESERVE_TOKENS)
    prompt_tokens, running = min(pool_tokens // 40, 8000), list[str]()
    while (rid := hand.arrive(prompt_tokens, 3 * RESERVE_TOKENS, ignore_eos=False)) in hand.sent:
        assert hand.pool.committed_tokens <= hand.pool.budget_tokens, "it goes on admitting over B"
        hand.started(rid)
        running.append(rid)
    hand.step(Gone(rid, reached_engine=False))
    assert hand.pool.committed_tokens == len(running) * (prompt_tokens + RESERVE_TOKENS)
    for generated in range(50, 3 * RESERVE_TOKENS + 1, 50):
        hand.progress(running, generated)
        held = len(running) * (prompt_tokens + generated)
        assert hand.pool.committed_tokens >= held, "the ledger does not grow with the outputs"
    assert hand.pool.committed_tokens == len(running) * (prompt_tokens + 3 * RESERVE_TOKENS)
    assert hand.pool.committed_tokens > hand.pool.budget_tokens
    waiting = hand.arrive(100, 50)
    assert waiting not in hand.sent, "it goes on admitting over B"
    assert set(running) <= set(hand.pool.jobs), "somebody was killed"
    while hand.pool.committed_tokens > hand.pool.budget_tokens - 150:
        hand.finish(running.pop(), tokens=3 * RESERVE_TOKENS)
    assert waiting in hand.sent, "admission does not recover"


def check_13(make: Make, pool_tokens: int) -> None:
    """No poll for a minute: admission goes on. Then the drift folds in, by two fresh polls."""
    hand = Hand(make, pool_tokens)
    ours = [hand.run(5000, 400) for _ in range(3)]
    for _ in range(8):
        hand.wait(0.25)
        hand.poll(15_000)
    last_at = hand.now
    for _ in range(12):
        hand.wait(5.0)
        short = hand.arrive(1000, 100)
        assert short in hand.sent, "stale polls stop admission"
        hand.started(short)
        hand.finish(short)
    hand.wait(1.0)
    foreign = pool_tokens // 8
    hand.poll(15_000 + foreign, at=last_at + 0.25)  # an answer that was long on its way
    hand.poll(15_000 + foreign, at=last_at + 0.5)
    assert hand.pool.foreign_tokens == 0, "a stale poll is believed"
    for _ in range(2):
        hand.wait(0.25)
        hand.poll(15_000 + foreign)
    drift = hand.pool.effective_tokens - hand.pool.committed_tokens
    assert abs(drift - foreign) <= deadband(pool_tokens), "the drift does not fold in"
    hand.finish(*ours)
    for _ in range(4):
        hand.wait(0.25)
        hand.poll(0)
    assert hand.pool.effective_tokens == 0, "the drift stays when it is over"


def check_13_engine(make: Make, seed: int) -> None:
    """The same on the engine: nobody waits longer for it, and it never retracts."""
    load = steady("short", 0.2, 90.0, 400, 300, seed=seed) + steady("16K", 1.5, 90.0, 16_000, 300, seed=seed)
    seeing = play(make, load, Conditions())
    blind = play(make, load, Conditions(blind=((10.0, 70.0),)))
    assert blind.count(Outcome.DONE) == len(blind.records), "stale polls stop admission"
    for kind in ("short", "16K"):
        slower = blind.of(kind).p99_seconds - seeing.of(kind).p99_seconds
        assert slower < 0.5, f"{kind} wait {slower:.1f} s longer without polls"


def check_14(make: Make) -> None:
    """Back with a smaller pool: K is read again; what can no longer fit gets 400, others wait."""
    hand = Hand(make, POOL_TOKENS)
    lost = hand.run(120_000, 500)
    too_large = hand.arrive(100_000, 500)
    fitting = hand.arrive(65_000, 500)
    smaller = [hand.arrive(62_000, 400) for _ in range(2)]
    hand.step(PoolDown(POOL))
    hand.step(Finished(lost, completed=False))
    hand.wait(2.0)
    assert not hand.refused, "somebody is refused while the server restarts"
    assert set(hand.sent) == {lost}
    hand.step(PoolUp(POOL, facts_of(65_536)))
    assert hand.pool.budget_tokens == int(65_536 * 0.97), "K is still the old one"
    refusal = hand.refused.get(too_large)
    assert refusal is not None, "what can never fit waits"
    assert refusal.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert refusal.limit_tokens == 65_530
    assert refusal.retry_after_seconds is None
    assert set(hand.refused) == {too_large}, "others are refused, too"
    for rid in [fitting, *smaller]:
        assert rid in hand.sent, "what fits is not sent"
        hand.started(rid)
        hand.finish(rid)
    late = hand.arrive(65_531, 10)
    assert hand.refused[late].reason is Reason.CONTEXT_LENGTH_EXCEEDED


def check_14_engine(make: Make, seed: int) -> None:
    """The same on the engine: nothing that cannot fit reaches it, and it never has to retract."""
    conditions = Conditions(restarts=(Restart(6.0, 3.0, machine(65_536)),))
    load = story(seed=seed, rate=2.0, seconds=20.0, clients=3, each=2, giant_at=5.0)
    run = play(make, load, conditions)
    (big,) = [record for record in run.records if record.kind == "180K"]
    assert (big.outcome, big.reason) == (Outcome.REFUSED, "context_length_exceeded"), "it waits in vain"
    failed = [record for record in run.records if record.outcome is Outcome.FAILED]
    too_long = [record.reason for record in failed if record.reason.startswith("prompt of")]
    assert not too_long, "the server has to refuse it"
    refused = {record.reason for record in run.records if record.outcome is Outcome.REFUSED}
    assert refused <= {"no_backend", "context_length_exceeded"}, "others are refused, too"


def check_15(make: Make, pool_tokens: int) -> None:
    """Traffic that bypasses the proxy, with reserves and holds of ours: effective = C + foreign."""
    hand = Hand(make, pool_tokens)
    ours, foreign = pool_tokens // 8, pool_tokens // 4
    running = hand.run(ours, 3000)
    hand.progress([running], 100)
    keep_context(hand, pool_tokens // 16)
    see(hand, ours + 100 + foreign)
    check_effective(hand, foreign)
    # a prefill under way: part of it is there, and none of it is foreign
    long = hand.arrive(pool_tokens // 4, 500)
    assert long in hand.sent
    for share in (0.0, 0.3, 0.7):
        done = int(share * pool_tokens / 4)
        see(hand, ours + 100 + foreign + done, waiting_uncached_tokens=pool_tokens // 4 - done)
        check_effective(hand, foreign)
    hand.started(long)
    see(hand, ours + 100 + foreign + pool_tokens // 4)
    check_effective(hand, foreign)
    # no overshoot, whoever comes
    while (short := hand.arrive(1000, 200)) in hand.sent:
        hand.started(short)
        assert hand.pool.committed_tokens + foreign < pool_tokens
    # and it is over when they are
    see(hand, hand.pool.used_tokens)
    check_effective(hand, 0)


def check_15_engine(make: Make, seed: int) -> None:
    """The same on the engine, half of which is somebody else's: what we send does not queue there."""
    others = steady("other", 0.2, 0.7, 20_000, 6000, seed=seed, direct=True)
    load = steady("16K", 0.7, 30.0, 16_000, 800, seed=seed, starts_at=3.0)
    load += steady("short", 0.3, 30.0, 300, 300, seed=seed, starts_at=3.0)
    run = play(make, others + load, Conditions())
    assert run.count(Outcome.DONE) == len(run.records)
    queued = quantile((sample.waiting for sample in run.samples if sample.at > 3.0), 0.9)
    assert queued == 0, "what is sent queues in the engine"


# --- what the checks are made of ----------------------------------------------------------------


def deadband(pool_tokens: int) -> int:
    """Differences that are not worth correcting: half a per cent of K."""
    return max(FOREIGN_DEADBAND_TOKENS, pool_tokens // 200)


def play(make: Make, load: Workload, conditions: Conditions) -> Run:
    run = replay(load, machine(POOL_TOKENS), make(Limits()), conditions=conditions)
    assert run.retractions == 0, "the engine had to retract"
    return run


def keep_context(hand: Hand, tokens: int) -> None:
    """A conversation whose context is held for its next turn."""
    segments = tuple(Segment(bytes([number]), tokens // 4) for number in range(4))
    rid = hand.run(tokens, 10, segments=segments, session="talk")
    hand.finish(rid, tokens=10)
    assert hand.pool.held_tokens == tokens // 4 * 4


def see(hand: Hand, used_tokens: int, *, waiting_uncached_tokens: int = 0) -> None:
    """The polls of a second."""
    for _ in range(4):
        hand.wait(0.25)
        hand.poll(used_tokens, waiting_uncached_tokens=waiting_uncached_tokens)


def check_effective(hand: Hand, foreign: int) -> None:
    """What is taken off B: ours with reserves and holds, and theirs."""
    ours = hand.pool.committed_tokens + hand.pool.held_tokens
    error = hand.pool.effective_tokens - ours - foreign
    assert error >= -deadband(hand.pool.facts.pool_tokens), f"{-error} foreign tokens are overlooked"
    assert error <= deadband(hand.pool.facts.pool_tokens), f"{error} tokens are counted twice"


# --- the scenarios ------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_tokens", POOLS_TOKENS)
@pytest.mark.parametrize("check", [check_12, check_13, check_15])
def test_the_ledger_follows_what_is_seen(check: Callable[[Make, int], None], pool_tokens: int) -> None:
    check(Controller, pool_tokens)


def test_a_server_that_is_back_with_a_smaller_pool_is_believed() -> None:
    check_14(Controller)


@pytest.mark.parametrize("foreign", [0, 20_000])
def test_the_chunk_under_way_is_nobody_elses(foreign: int) -> None:
    """SGLang counts it twice: as in use, and among what waits for its prefill."""
    hand = Hand(Controller, POOL_TOKENS)
    chunk = hand.pool.facts.chunk_tokens
    assert hand.arrive(64_000, 500) in hand.sent
    for done in range(0, 56_000, chunk):
        hand.wait(0.25)
        hand.poll(done + chunk + foreign, waiting_uncached_tokens=64_000 - done)
        if done:
            assert abs(hand.pool.foreign_tokens - foreign) <= deadband(POOL_TOKENS)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("check", [check_13_engine, check_14_engine, check_15_engine])
def test_the_engine_never_retracts_whatever_is_not_seen(
    check: Callable[[Make, int], None], seed: int
) -> None:
    check(Controller, seed)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (partial(check_12, pool_tokens=POOL_TOKENS), NoReserveGrowth, "does not grow"),
        (partial(check_12, pool_tokens=POOL_TOKENS), NoBudget, "admitting over B"),
        (partial(check_13, pool_tokens=POOL_TOKENS), PollIsLedger, "stop admission"),
        (partial(check_13, pool_tokens=POOL_TOKENS), NoDrift, "does not fold in"),
        (partial(check_13, pool_tokens=POOL_TOKENS), BelievesAnyPoll, "a stale poll is believed"),
        (partial(check_13_engine, seed=1), PollIsLedger, "longer without polls|stop admission"),
        (check_14, OldFacts, "still the old one"),
        (check_14, RestartRefusesAll, "refused while the server restarts"),
        (partial(check_15, pool_tokens=POOL_TOKENS), ForeignAdds, "counted twice"),
        (partial(check_15, pool_tokens=POOL_TOKENS), ForeignBehindReserves, "overlooked"),
        (partial(check_15, pool_tokens=POOL_TOKENS), NoDrift, "overlooked"),
        (partial(check_15_engine, seed=1), NoDrift, "queues in the engine"),
        (partial(check_15_engine, seed=2), ForeignBehindReserves, "queues in the engine"),
    ],
    ids=named,
)
def test_the_scenarios_of_the_ledger_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
