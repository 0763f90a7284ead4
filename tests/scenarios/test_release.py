"""Scenarios 10 and 11: whatever ends a request early, its charge comes back once and not too soon."""

from collections.abc import Callable
from functools import partial

import pytest

from proxy.admission.controller import Controller
from proxy.admission.job import State
from proxy.admission.limits import Limits
from proxy.admission.types import (
    Drain,
    Event,
    Finished,
    FirstToken,
    Gone,
    Progress,
    Reason,
    Requeue,
    Segment,
    Sliceable,
    SliceDone,
    Tick,
)
from proxy.simulator.conditions import Conditions, Restart
from proxy.simulator.mixes import story
from proxy.simulator.records import Outcome
from proxy.simulator.virtual import replay
from tests.scenarios.hand import Hand
from tests.scenarios.policies import (
    DownForgets,
    FailuresStay,
    FailuresTeach,
    Make,
    NeverRelease,
    ReleaseAtOnce,
    RetryAtOnce,
    SlicesGoOn,
    StaysQueued,
    named,
)
from tests.scenarios.traffic import machine

LEAVER_TOKENS = 120_000
WAITER_TOKENS = 100_000  # does not fit beside it
OTHER_TOKENS = 5000
STAGES = ("sliced", "prefilling", "streaming")
ENDS = ("abort confirmed", "poll", "ten seconds")


def check_10_queued(make: Make) -> None:
    """Left while queued: out of the queue at once, and who waited behind it goes in the same tick."""
    hand = Hand(make)
    hand.run(80_000, 500)
    leaver = hand.arrive(LEAVER_TOKENS, 500)
    behind = hand.arrive(80_000, 500)
    hand.wait(16.0)  # the gate is closed
    assert not {leaver, behind} & set(hand.sent)
    committed = hand.pool.committed_tokens
    hand.step(Gone(leaver, reached_engine=False))
    assert behind in hand.sent, "who left is still in the queue"
    assert hand.line.waiting_tokens == 0
    assert hand.pool.committed_tokens == committed + 80_500
    check_nothing_changes(hand, leaver)


def check_10(make: Make, stage: str, end: str) -> None:
    """Left later: its charge stays until the engine has let go, comes back then, and only once."""
    hand = Hand(make)
    hand.run(OTHER_TOKENS, 1000)
    leaver = at_stage(hand, stage)
    waiter = hand.arrive(WAITER_TOKENS, 500)
    before, sent = hand.pool.committed_tokens, len(hand.slices)
    hand.step(Gone(leaver))
    hand.wait(5.0)
    assert hand.pool.committed_tokens == before, "the charge is gone before the engine let go"
    assert waiter not in hand.sent
    assert len(hand.slices) == sent, "slices go on for a client that left"
    assert stage != "sliced" or leaver not in hand.sent, "it is sent for a client that left"
    let_go(hand, leaver, stage, end)
    assert waiter in hand.sent, "the charge does not come back"
    assert hand.pool.committed_tokens == OTHER_TOKENS + 1000 + WAITER_TOKENS + 500
    check_nothing_changes(hand, leaver)


def check_11(make: Make, stage: str) -> None:
    """A refused connection, a 500, an error event, a reset: released once, and it teaches nothing."""
    hand = Hand(make)
    for _ in range(20):
        hand.finish(hand.run(300, None), tokens=800)
    hand.run(OTHER_TOKENS, 1000)
    failing = at_stage(hand, stage, output_tokens=None)
    waiter = hand.arrive(WAITER_TOKENS, 500)
    reserve = hand.pool.jobs[failing].reserve_tokens
    assert waiter not in hand.sent
    if stage == "sliced":  # the slice fails, and so does the request that then goes whole
        hand.step(SliceDone(failing, hand.slices[-1].end_tokens, None))
        hand.wait(1.0)
        assert failing in hand.sent, "it does not go whole after its slice failed"
    hand.step(Finished(failing, None, 1, completed=False))
    assert waiter in hand.sent, "the charge of what failed does not come back"
    assert hand.pool.committed_tokens == OTHER_TOKENS + 1000 + WAITER_TOKENS + 500
    check_nothing_changes(hand, failing)
    hand.started(waiter)
    hand.finish(waiter)
    for _ in range(100):
        hand.step(Finished(hand.run(300, None), None, 1, completed=False))
    assert hand.pool.jobs[hand.run(300, None)].reserve_tokens == reserve, "failures teach the reserve"


def check_11_busy(make: Make) -> None:
    """The engine's queue is full for five seconds: no storm, nobody is lost, the order stays."""
    hand = Hand(make)
    attempts, started = 0, list[str]()
    rids = list[str]()
    for _ in range(10):
        hand.now += 0.001
        rids.append(hand.arrive(300, 100))
    while hand.now < 5.0:
        for rid in list(hand.sent):
            attempts += 1
            del hand.sent[rid]
            hand.step(Requeue(rid))
        hand.now += 0.05
        hand.step(Tick())
    assert attempts <= 20, f"ten requests are tried {attempts} times"
    assert attempts > 10, "it is never tried again"
    assert hand.pool.committed_tokens == sum(job.prompt_tokens + 100 for job in hand.pool.jobs.values())
    while len(started) < len(rids) and hand.now < 20.0:
        for rid in [rid for rid in hand.sent if rid not in started]:
            started.append(rid)
            hand.started(rid)
        hand.now += 0.05
        hand.step(Tick())
    assert started == rids, "the order changes"


def check_11_crash(make: Make, seed: int) -> None:
    """The server dies with all it holds: every client gets an answer, and no charge is left."""
    controller, engine = make(Limits()), machine(186_624)
    conditions = Conditions(restarts=(Restart(6.0, 3.0, engine), Restart(14.0, 2.0, engine)))
    run = replay(story(seed=seed, seconds=20.0, each=1), engine, controller, conditions=conditions)
    assert run.count(Outcome.UNFINISHED) == 0, "somebody gets no answer"
    assert run.count(Outcome.FAILED) > 0
    done = [record for record in run.records if record.outcome is Outcome.DONE]
    assert max(record.sent_at for record in done) > 16.0
    assert not controller.jobs
    assert {line.pool.committed_tokens for line in controller.lines.values()} == {0}


# --- what the checks are made of ----------------------------------------------------------------


def at_stage(hand: Hand, stage: str, output_tokens: int | None = 500) -> str:
    rid = hand.arrive(LEAVER_TOKENS, output_tokens, sliceable=stage == "sliced")
    if stage == "sliced":
        hand.step(Sliceable(rid, LEAVER_TOKENS))
        hand.now += 0.2
        hand.step(SliceDone(rid, hand.slices[-1].end_tokens, 0))
        assert [part.rid for part in hand.slices] == [rid, rid]
        assert rid not in hand.sent
    elif stage == "streaming":
        hand.started(rid)
        hand.progress([rid], 20)
    return rid


def let_go(hand: Hand, rid: str, stage: str, end: str) -> None:
    """The engine drops the request, and that is heard in one of three ways."""
    if end == "abort confirmed":
        if stage == "sliced":
            hand.step(SliceDone(rid, hand.slices[-1].end_tokens, None))
        else:
            hand.step(Finished(rid, completed=False))
    elif end == "poll":
        hand.poll(OTHER_TOKENS + LEAVER_TOKENS)
        assert rid in hand.pool.jobs, "the charge is gone before the engine let go"
        hand.wait(0.25)
        hand.poll(OTHER_TOKENS)
    else:
        hand.wait(4.5)
        assert rid in hand.pool.jobs, "the charge is gone before the engine let go"
        hand.wait(1.0)


def check_nothing_changes(hand: Hand, rid: str) -> None:
    """Whatever else is heard of it: it is over."""
    before = (hand.pool.committed_tokens, hand.pool.backlog_tokens, hand.pool.running_slots, len(hand.sent))
    late: list[Event] = [FirstToken(rid), Progress({rid: 400}), SliceDone(rid, 8192, 8192), Requeue(rid)]
    for event in [*late, Gone(rid), Finished(rid, 10, 10), Finished(rid, completed=False)]:
        hand.step(event)
    hand.wait(11.0)
    after = (hand.pool.committed_tokens, hand.pool.backlog_tokens, hand.pool.running_slots, len(hand.sent))
    assert after == before, "it is released twice"


# --- the scenarios ------------------------------------------------------------------------------


def test_a_client_that_leaves_the_queue_is_out_of_it_at_once() -> None:
    check_10_queued(Controller)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("end", ENDS)
def test_a_client_that_leaves_later_gives_its_charge_back_once_the_engine_let_go(
    stage: str, end: str
) -> None:
    check_10(Controller, stage, end)


@pytest.mark.parametrize("stage", STAGES)
def test_a_request_that_fails_gives_its_charge_back_once_and_teaches_nothing(stage: str) -> None:
    check_11(Controller, stage)


def test_a_full_queue_in_the_engine_makes_no_storm() -> None:
    check_11_busy(Controller)


def test_one_that_a_poll_called_prefilled_is_queued_again_when_the_engine_turned_it_away() -> None:
    hand = Hand(Controller)
    rid = hand.run(300, 100)  # not a stream: a poll said that its prefill was done
    del hand.sent[rid]
    hand.step(Requeue(rid))
    assert hand.controller.jobs[rid].state is State.QUEUED
    hand.wait(1.0)
    assert rid in hand.sent


def test_one_turned_away_is_charged_once_and_leaves_its_conversation() -> None:
    hand = Hand(Controller)
    told = Segment(b"a" * 16, 20_000)
    rid = hand.arrive(20_500, 100, tenant="t", segments=(told,), session="s")
    once = hand.controller.charges.of("t")
    talk = hand.controller.jobs[rid].conversation
    assert talk is not None
    for _ in range(3):
        del hand.sent[rid]
        hand.step(Requeue(rid))
        assert hand.controller.charges.of("t") == 0.0
        assert talk.running == 0
        hand.wait(6.0)
        assert rid in hand.sent
    assert hand.controller.charges.of("t") == once
    assert talk.running == 1


def test_one_turned_away_while_the_proxy_drains_is_refused() -> None:
    hand = Hand(Controller)
    rid = hand.arrive(300, 100)
    hand.step(Drain())
    del hand.sent[rid]
    hand.step(Requeue(rid))
    assert hand.refused[rid].reason is Reason.DRAINING
    assert not hand.controller.jobs


def test_who_will_not_wait_at_all_is_sent_when_there_is_room_and_refused_when_there_is_none() -> None:
    hand = Hand(Controller)
    assert hand.arrive(300, 100, wait_limit_seconds=0.0) in hand.sent
    hand.run(150_000, 1000)
    assert hand.arrive(150_000, 1000, wait_limit_seconds=0.0) in hand.refused


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_client_gets_an_answer_when_the_server_dies(seed: int) -> None:
    check_11_crash(Controller, seed)


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (check_10_queued, StaysQueued, "still in the queue"),
        (partial(check_10, stage="sliced", end="poll"), ReleaseAtOnce, "before the engine let go"),
        (partial(check_10, stage="sliced", end="abort confirmed"), SlicesGoOn, "slices go on"),
        (partial(check_10, stage="prefilling", end="poll"), ReleaseAtOnce, "before the engine let go"),
        (partial(check_10, stage="streaming", end="poll"), ReleaseAtOnce, "before the engine let go"),
        (partial(check_10, stage="streaming", end="poll"), NeverRelease, "does not come back"),
        (partial(check_10, stage="prefilling", end="ten seconds"), NeverRelease, "does not come back"),
        (partial(check_11, stage="prefilling"), FailuresStay, "does not come back"),
        (partial(check_11, stage="streaming"), FailuresStay, "does not come back"),
        (partial(check_11, stage="streaming"), FailuresTeach, "failures teach"),
        (check_11_busy, RetryAtOnce, "are tried"),
        (partial(check_11_crash, seed=1), DownForgets, "gets no answer"),
    ],
    ids=named,
)
def test_the_scenarios_of_early_ends_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)
