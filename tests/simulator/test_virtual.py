from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import pytest

from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Gone,
    Lane,
    Load,
    PoolDown,
    PoolUp,
    Progress,
    Reason,
    Refuse,
    Requeue,
    Slice,
    Sliceable,
    SliceDone,
    Tick,
    Tokenize,
)
from proxy.simulator.conditions import Conditions, Restart
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.mixes import agents, giant, longs, shorts, story
from proxy.simulator.pace import PACES
from proxy.simulator.records import Outcome
from proxy.simulator.virtual import replay
from proxy.simulator.workload import Client, Turn, Workload, fixed

RTX = EngineConfig(pace=PACES["rtx6000-tp2"])


class Open:
    """Lets everything through, or the first few; remembers all it was told."""

    def __init__(self, *, refuse: int = 0, hold: bool = False) -> None:
        self.heard: list[tuple[float, Event]] = []
        self._refuse = refuse
        self._hold = hold

    def step(self, now: float, event: Event) -> Sequence[Action]:
        self.heard.append((now, event))
        rid = event.request.rid if isinstance(event, Arrival) else ""
        if isinstance(event, Requeue):
            rid = event.rid
        if not rid or self._hold:
            return []
        if self._refuse > 0:
            self._refuse -= 1
            return [Refuse(rid, Reason.WOULD_MISS_DEADLINE, Lane.SHORT, 9.0, 5.0, 1, 0, 1)]
        return [Dispatch(rid, "sim", Lane.SHORT, 0.0, "fit")]

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for _, event in self.heard if isinstance(event, kind)]


def one(tokens: int = 1000, output: int = 100, **changes: object) -> Workload:
    ask = replace(fixed("one", "one", tokens, output), **changes)  # type: ignore[arg-type]
    return Workload("one", (Client("one", (Turn(ask),)),))


def test_without_a_controller_clients_reach_the_engine_directly() -> None:
    run = replay(one(), RTX)
    (record,) = run.records
    assert record.outcome is Outcome.DONE
    assert record.ttft_seconds == pytest.approx(1000 / 6900 + 1000 * 4e-6)
    assert record.completion_tokens == 100


def test_twenty_64k_prompts_at_once_wait_as_long_as_their_prefills_take() -> None:
    # 121.92 s on the story's machine, whatever the pool
    assert replay(longs(20, 1), RTX).of("64K").mean_seconds == pytest.approx(121.92, rel=0.05)


def test_the_controller_hears_the_life_of_a_request_in_order() -> None:
    controller = Open()
    replay(one(output=200), RTX, controller)
    kinds = [type(event) for _, event in controller.heard if not isinstance(event, Load | Tick | Progress)]
    assert kinds == [PoolUp, Arrival, FirstToken, Finished]
    assert controller.of(Finished) == [Finished("r0000000", 1000, 200, completed=True)]
    seen = [event.generated_tokens for event in controller.of(Progress) if isinstance(event, Progress)]
    counts = [tokens["r0000000"] for tokens in seen if tokens]
    assert len(counts) >= 3
    assert counts == sorted(counts)


def test_loads_and_ticks_come_every_quarter_second_with_the_servers_own_timestamps() -> None:
    controller = Open()
    replay(one(8000, 10), RTX, controller)
    at = [now for now, event in controller.heard if isinstance(event, Tick)]
    assert at == pytest.approx([0.25 * number for number in range(len(at))])
    loads = [(now, event) for now, event in controller.heard if isinstance(event, Load)]
    assert all(event.sample.at <= now for now, event in loads)


def test_a_refused_client_goes_on_and_one_that_retries_comes_back_after_retry_after() -> None:
    (gone,) = replay(one(), RTX, Open(refuse=1)).records
    assert (gone.outcome, gone.reason, gone.predicted_wait_seconds) == (
        Outcome.REFUSED,
        "would_miss_deadline",
        9.0,
    )
    first, second = replay(one().with_retries(1), RTX, Open(refuse=1)).records
    assert (first.outcome, second.outcome) == (Outcome.REFUSED, Outcome.DONE)
    assert (second.sent_at, second.asked_at, second.attempt) == (5.0, 0.0, 1)


def test_a_client_that_leaves_while_streaming_is_aborted_and_its_end_is_told() -> None:
    controller = Open()
    (record,) = replay(one(output=5000, leaves_after_seconds=1.0), RTX, controller).records
    assert record.outcome is Outcome.LEFT
    assert controller.of(Gone) == [Gone("r0000000", reached_engine=True)]
    (finished,) = controller.of(Finished)
    assert isinstance(finished, Finished)
    assert not finished.completed


def test_a_client_that_leaves_while_it_is_held_never_reaches_the_engine() -> None:
    controller = Open(hold=True)
    (record,) = replay(one(leaves_after_seconds=1.0), RTX, controller).records
    assert record.dispatched_at is None
    assert controller.of(Gone) == [Gone("r0000000", reached_engine=False)]
    assert controller.of(Finished) == []


def test_an_abort_waits_until_the_scheduler_knows_the_request() -> None:
    controller = Open()
    run = replay(one(180_000, 100, leaves_after_seconds=0.05), RTX, controller)
    ended = next(now for now, event in controller.heard if isinstance(event, Finished))
    assert ended < 4.0
    assert run.records[0].completion_tokens == 0


def test_bare_sglang_notices_a_client_that_left_before_its_first_token_late() -> None:
    workload = one(180_000, 100, leaves_after_seconds=2.0) + shorts(1, 20)
    run = replay(workload, RTX)
    busy = [sample.at for sample in run.samples if sample.used_tokens > 20_000]
    assert 4.5 < max(busy) < 7.0


def test_a_full_server_queue_is_backpressure_to_the_controller() -> None:
    controller = Open()
    config = replace(RTX, max_queued_requests=1)
    run = replay(shorts(50, 1) + one(64_000, 10), config, controller)
    assert controller.of(Requeue)
    assert run.count(Outcome.DONE) == len(run.records)


def test_a_prompt_that_can_never_fit_fails_and_is_told() -> None:
    controller = Open()
    (record,) = replay(one(200_000), RTX, controller).records
    assert record.outcome is Outcome.FAILED
    assert len(controller.of(Finished)) == 1


def test_blind_times_have_no_loads() -> None:
    controller = Open()
    replay(one(30_000), RTX, controller, conditions=Conditions(blind=((1.0, 3.0),)))
    loads = [now for now, event in controller.heard if isinstance(event, Load)]
    assert loads
    assert not [now for now in loads if 1.0 <= now < 3.0]


def test_a_restart_loses_what_ran_and_comes_back_with_the_new_pool() -> None:
    controller = Open()
    smaller = replace(RTX, pool_tokens=65_536)
    conditions = Conditions(restarts=(Restart(2.0, 1.0, smaller),))
    run = replay(one(30_000) + shorts(1, 10), RTX, controller, conditions=conditions)
    assert run.of("one").failed == 1
    (_, up) = controller.of(PoolUp)
    assert isinstance(up, PoolUp)
    assert up.facts.pool_tokens == 65_536
    assert len(controller.of(PoolDown)) == 1
    assert run.records[-1].outcome is Outcome.DONE


def test_foreign_clients_go_around_the_controller() -> None:
    controller = Open()
    foreign = Workload("foreign", tuple(replace(client, direct=True) for client in longs(1, 1).clients))
    run = replay(foreign + one(), RTX, controller)
    assert len(controller.of(Arrival)) == 1
    assert run.of("64K").count == 1
    assert max(sample.used_tokens for sample in run.samples) >= 64_000


def test_agents_hit_the_cache_with_all_they_said_before() -> None:
    run = replay(agents(1, turns=3), RTX)
    hits = [record.cached_tokens for record in run.records]
    assert hits == [0, 48_000 + 299, 48_000 + 900 + 599]
    assert run.records[1].sent_at - (run.records[0].ended_at or 0) == pytest.approx(3.0, rel=0.2)


class Slicing(Open):
    """Sends everything long in slices of 20,000 ids, one after the other."""

    def step(self, now: float, event: Event) -> Sequence[Action]:
        if isinstance(event, Arrival) and event.request.sliceable:
            self.heard.append((now, event))
            return [Tokenize(event.request.rid, "sim")]
        if isinstance(event, Sliceable):
            self.heard.append((now, event))
            return [Slice(event.rid, "sim", 20_000)]
        if isinstance(event, SliceDone):
            self.heard.append((now, event))
            if event.cached_tokens is None:
                return []
            if event.end_tokens < 60_000:
                return [Slice(event.rid, "sim", event.end_tokens + 20_000)]
            return [Dispatch(event.rid, "sim", Lane.LONG, 0.0, "fit")]
        return super().step(now, event)


def test_slices_are_prefilled_one_by_one_and_the_request_hits_them() -> None:
    controller = Slicing()
    (record,) = replay(one(64_000, 100), RTX, controller).records
    assert (record.outcome, record.slices, record.cached_tokens) == (Outcome.DONE, 3, 60_000)
    (known,) = controller.of(Sliceable)
    assert known == Sliceable("r0000000", 64_000)
    done = [event for event in controller.of(SliceDone) if isinstance(event, SliceDone)]
    assert [event.cached_tokens for event in done] == [0, 20_000, 40_000]
    alone = replay(one(64_000, 100), RTX).records[0].ttft_seconds
    assert alone is not None
    assert record.ttft_seconds == pytest.approx(alone, abs=0.5)
    assert record.wait_seconds == pytest.approx(64_000 * 4e-6)  # until its first slice


def test_shorts_get_in_between_slices() -> None:
    workload = one(64_000, 100) + shorts(2, 12)
    whole, sliced = replay(workload, RTX, Open()), replay(workload, RTX, Slicing())
    assert sliced.of("short").longest_seconds < 0.5 * whole.of("short").longest_seconds


def test_a_client_that_leaves_during_a_slice_costs_no_more_than_that_slice() -> None:
    controller = Slicing()
    run = replay(one(64_000, 100, leaves_after_seconds=4.0), RTX, controller)
    assert controller.of(Gone) == [Gone("r0000000", reached_engine=True)]
    (done, last) = controller.of(SliceDone)
    assert isinstance(done, SliceDone)
    assert isinstance(last, SliceDone)
    assert (done.cached_tokens, last.cached_tokens) == (0, None)
    assert run.samples[-1].used_tokens <= 20_000


def test_a_controller_that_asks_to_be_woken_is_woken_then() -> None:
    class Waking(Open):
        def next_wakeup(self, now: float) -> float | None:
            return 1.23 if now < 1.23 else None

    controller = Waking()
    replay(one(30_000), RTX, controller)
    ticks = [now for now, event in controller.heard if isinstance(event, Tick)]
    assert 1.23 in ticks


def test_what_is_watched_is_kept_in_the_samples() -> None:
    run = replay(one(), RTX, Open(), watch=lambda: {"committed": 7.0})
    assert {sample.extra["committed"] for sample in run.samples} == {7.0}


def test_the_same_seed_gives_the_same_run() -> None:
    one_run, other = replay(story(seed=3), RTX), replay(story(seed=3), RTX)
    assert one_run.records == other.records


def test_a_hundred_seconds_of_a_thousand_requests_take_well_under_a_second() -> None:
    workload = shorts(10, 100) + longs(6, 2) + giant(20)
    begun = perf_counter()
    run = replay(workload, EngineConfig(), Open())
    assert len(run.records) > 900
    assert perf_counter() - begun < 2.0  # 0.3 s alone; the machine may be busy
