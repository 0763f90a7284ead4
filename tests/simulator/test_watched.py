from dataclasses import replace

import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.types import Action, Event, PoolFacts, PoolUp
from proxy.simulator.conditions import Conditions
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.mixes import giant, longs, shorts, true_speed_story
from proxy.simulator.records import Run
from proxy.simulator.virtual import replay
from proxy.simulator.watched import Cause, Seen, Watched
from proxy.simulator.without import Difference, first_difference
from proxy.simulator.workload import Workload

ENGINE = EngineConfig()
QUIET = shorts(1, 20)
BUSY = shorts(4, 40) + longs(5, 1) + giant(10)


def watch(workload: Workload, limits: Limits, engine: EngineConfig = ENGINE) -> tuple[Run, Seen]:
    watched = Watched(Controller(limits))
    return replay(workload, engine, watched), watched.seen


def without(workload: Workload, limits: Limits, **lifted: object) -> Difference | None:
    """What is different when `limits` change like that."""
    _, seen = watch(workload, limits)
    other = Watched(Controller(replace(limits, **lifted)))  # type: ignore[arg-type]
    return first_difference(workload, ENGINE, other, Conditions(), seen.decisions)


def test_a_watched_controller_decides_as_an_unwatched_one_does() -> None:
    workload = true_speed_story()
    alone = replay(workload, ENGINE, Controller(Limits()))
    run, _ = watch(workload, Limits())
    assert run.records == alone.records


def test_every_decision_is_noted_once() -> None:
    run, seen = watch(BUSY, Limits(max_queue_seconds=600))
    assert sorted(decision.rid for decision in seen.decisions) == sorted(r.rid for r in run.records)
    assert seen.rules.total() == len(run.records)


def test_an_idle_server_holds_nobody() -> None:
    _, seen = watch(QUIET, Limits())
    assert not seen.held
    assert (seen.gate_closures, seen.refusals.total()) == (0, 0)


def test_what_holds_the_next_one_is_told_apart() -> None:
    _, seen = watch(BUSY, Limits())
    assert seen.held[Cause.MEMORY]
    assert seen.held[Cause.PREFILL]
    assert not seen.held[Cause.SLOTS]
    _, few_slots = watch(shorts(30, 10), Limits(), replace(ENGINE, max_running_requests=4))
    assert few_slots.held[Cause.SLOTS]
    assert not few_slots.held[Cause.MEMORY]
    _, one_context = watch(longs(3, 1), Limits(max_long_contexts=1))
    assert one_context.held[Cause.LONG_CONTEXTS]
    full = replace(ENGINE, max_running_requests=1, max_queued_requests=1)
    lying = replay_with_lying_slots(shorts(50, 2), full)
    assert lying.held[Cause.BACKPRESSURE]


def replay_with_lying_slots(workload: Workload, engine: EngineConfig) -> Seen:
    """The server takes fewer requests at once than it says."""

    class Lying(Controller):
        def step(self, now: float, event: Event) -> list[Action]:
            if isinstance(event, PoolUp):
                event = replace(event, facts=replace(event.facts, max_running_requests=64))
            return super().step(now, event)

    watched = Watched(Lying(Limits()))
    replay(workload, engine, watched)
    return watched.seen


def test_the_operators_word_on_the_pool_replaces_the_servers() -> None:
    watched = Watched(Controller(Limits()), pool_tokens=50_000)
    watched.step(0.0, PoolUp("a", PoolFacts(pool_tokens=186_624)))
    assert watched.controller.lines["a"].pool.facts.pool_tokens == 50_000


def test_the_largest_values_are_kept() -> None:
    run, seen = watch(BUSY, Limits())
    committed = [sample.extra for sample in run.samples]
    assert committed == [{}] * len(committed)  # nobody asked for them
    assert 128_000 < seen.most["committed_tokens"] <= 186_624
    assert seen.most["long_contexts"] >= 2
    assert seen.most["queue_requests"] >= 1


@pytest.mark.parametrize(
    "lifted",
    [
        {"pool_headroom": 0.0},
        {"express_share": 0.0},
        {"max_bypass_seconds": 1e9},
        {"bypass_budget": 1e9},
        {"slice_seconds": 0.0},
        {"max_long_prefills": 64},
        {"output_reserve_cap": 10**9},
        {"session_hold_seconds": 0.0},
    ],
)
def test_on_an_idle_server_no_limit_acts(lifted: dict[str, object]) -> None:
    assert without(QUIET, Limits(), **lifted) is None


def test_without_slices_the_first_long_is_sent_at_another_time() -> None:
    first = without(BUSY, Limits(), slice_seconds=0.0)
    assert first is not None
    assert first.what.endswith(("later than without", "earlier than without"))


def test_a_limit_on_resident_contexts_shows_at_the_request_it_held() -> None:
    first = without(longs(2, 1, stagger_seconds=1.0), Limits(max_long_contexts=1), max_long_contexts=None)
    assert first is not None
    assert first.rid == "r0000001"
    assert "sent" in first.what
    assert first.what.endswith("s later than without")


def test_a_ceiling_on_prompts_shows_at_the_request_it_refused() -> None:
    first = without(BUSY, Limits(max_prompt_tokens=100_000), max_prompt_tokens=None)
    assert first is not None
    assert first.what == "refused, without it held"
    alone = without(giant(0), Limits(max_prompt_tokens=100_000), max_prompt_tokens=None)
    assert alone is not None
    assert alone.what.startswith("refused, without it")


def test_a_request_that_would_have_been_refused_shows_as_well() -> None:
    workload = longs(1, 1)
    _, seen = watch(workload, Limits())
    stricter = Watched(Controller(Limits(max_prompt_tokens=1000)))
    first = first_difference(workload, ENGINE, stricter, Conditions(), seen.decisions)
    assert first == Difference(first.at if first else 0.0, "r0000000", "sent, without it refused")


def test_a_request_that_would_still_be_held_at_the_end_shows_as_sent_earlier() -> None:
    class Holding(Controller):
        def step(self, now: float, event: Event) -> list[Action]:
            return []

    workload = longs(1, 1)
    _, seen = watch(workload, Limits())
    conditions = Conditions(horizon_seconds=5.0)
    first = first_difference(workload, ENGINE, Watched(Holding(Limits())), conditions, seen.decisions)
    assert first is not None
    assert first.what == "sent earlier than without"
