"""Several pools: long prompts to theirs, conversations where they are, nobody beside an idle pool."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from proxy.admission import routing
from proxy.admission.controller import Controller
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.types import (
    NewLimits,
    PoolDown,
    PoolFacts,
    PoolGone,
    PoolLeaving,
    PoolUp,
    Reason,
    Request,
    Segment,
)
from proxy.admission.view import explain
from tests.scenarios.fleet import Fleet, Seen
from tests.scenarios.policies import Make, named

SMALL, LARGE, HUGE = 186_624, 1_000_000, 300_000
LONG_TOKENS = 65_536
TIERS = {"small": PoolFacts(SMALL), "large": PoolFacts(LARGE, tier="long")}
TWINS = {"a": PoolFacts(SMALL), "b": PoolFacts(SMALL)}
TIERED = Limits(long_tier_tokens=LONG_TOKENS)


# --- wrong policies -------------------------------------------------------------------------------


class Tierless(Controller):
    """Tiers are names and no more."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, long_tier_tokens=None))


class Routed(Controller):
    """The controller with another router."""

    router_type: type[routing.Router]

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.router = self.router_type(self.fleet, self.conversations, limits)


class NoSpill(Routed):
    """Each keeps to its tier, whatever it costs."""

    class router_type(routing.Router):  # noqa: N801
        def _detour_seconds(self, line: Line, job: Job, home: str) -> float:
            return math.inf if super()._detour_seconds(line, job, home) else 0.0


class SpillsAtOnce(Routed):
    """Any pool is as good as any other when it is faster."""

    class router_type(routing.Router):  # noqa: N801
        def _detour_seconds(self, line: Line, job: Job, home: str) -> float:
            return 0.0


class Glued(Routed):
    """A conversation never leaves the pool where it is resident."""

    class router_type(routing.Router):  # noqa: N801
        def _rank(self, line: Line, job: Job, home: str, now: float) -> tuple[float, bool, int, int]:
            cost, away, tokens, slots = super()._rank(line, job, home, now)
            return math.inf if away and home else cost, away, tokens, slots

        def stealable(self, line: Line, now: float) -> Iterator[Job]:
            return iter(())


class Forgetful(Routed):
    """A request goes where the least waits; what is cached is not asked."""

    class router_type(routing.Router):  # noqa: N801
        def _rank(self, line: Line, job: Job, home: str, now: float) -> tuple[float, bool, int, int]:
            return float(len(line)), False, line.pool.effective_tokens, line.pool.running_slots


class NoStealing(Routed):
    """Once queued, a request waits for that pool alone."""

    class router_type(routing.Router):  # noqa: N801
        def stealable(self, line: Line, now: float) -> Iterator[Job]:
            return iter(())


class LeavesTheQueue(Controller):
    """A pool that leaves takes nothing new, and forgets those who already wait for it."""

    def _pool_leaving(self, now: float, event: PoolLeaving, actions: list) -> list[Line]:  # type: ignore[type-arg]
        self.lines[event.pool].pool.leaving = True
        return []


# --- long-context routing -------------------------------------------------------------------------


def p99(seen: list[Seen]) -> float:
    return sorted(s.ttft_seconds for s in seen)[int(0.99 * (len(seen) - 1))]


def mixed(make: Make, *, longs: bool) -> tuple[list[Seen], list[Seen]]:
    """A minute of shorts, and with `longs` prompts of 100K and 300K among them."""
    fleet = Fleet(make, TIERS, TIERED)
    for number in range(240):
        fleet.do(number / 4, partial(fleet.arrive, 2000, 100, name="short"))
    for number in range(5 if longs else 0):
        fleet.do(1 + 12 * number, partial(fleet.arrive, 100_000, 200, name="long"))
        fleet.do(5 + 12 * number, partial(fleet.arrive, HUGE, 200, name="long"))
    fleet.run(240.0)
    fleet.check_empty()
    found = list(fleet.seen.values())
    return [s for s in found if s.request.rid[0] == "s"], [s for s in found if s.request.rid[0] == "l"]


def check_tiers(make: Make) -> None:
    alone, _ = mixed(make, longs=False)
    shorts, longs = mixed(make, longs=True)
    assert {s.pool for s in longs} == {"large"}, "a long prompt runs on the small pool"
    assert p99(shorts) <= p99(alone) + 0.05, "shorts wait longer since there are longs"


def check_short_spills(make: Make) -> None:
    """Below the threshold, yet seven seconds of prefill: a short behind it sees an idle large pool."""
    fleet = Fleet(make, TIERS, Limits(long_tier_tokens=150_000))
    fleet.arrive(140_000, 10)
    fleet.run(1.0)
    short = fleet.arrive(2000, 10)
    fleet.run(30.0)
    assert short.pool == "large", "it waits beside an idle pool"


def check_short_stays(make: Make) -> None:
    """A wait of half a second is no reason to take what is set aside for others."""
    fleet = Fleet(make, TIERS, TIERED)
    fleet.arrive(30_000, 10)
    fleet.run(1.0)
    short = fleet.arrive(2000, 10)
    fleet.run(30.0)
    assert short.pool == "small", "a short takes the long ones' place for little"


def check_long_spills(make: Make, wait_limit_seconds: float, pool: str) -> None:
    """Fifteen seconds of prefill are before it on the large pool, and the small one is idle."""
    fleet = Fleet(make, TIERS, TIERED)
    fleet.arrive(100_000, 10)  # the rate becomes known
    fleet.run(20.0)
    fleet.arrive(HUGE, 10)
    long = fleet.arrive(100_000, 10, wait_limit_seconds=wait_limit_seconds)
    fleet.run(60.0)
    fleet.check_empty()
    assert long.pool == pool, "it is refused" if long.refused else f"it goes to the {long.pool} pool"


def test_long_prompts_run_on_the_large_pool_only_and_shorts_do_not_notice_them() -> None:
    check_tiers(Controller)


def test_a_short_spills_over_to_save_seconds_and_not_to_save_less() -> None:
    check_short_spills(Controller)
    check_short_stays(Controller)


@pytest.mark.parametrize(("wait_limit_seconds", "pool"), [(600.0, "large"), (5.0, "small")])
def test_a_long_prompt_spills_over_only_when_it_would_be_refused(
    wait_limit_seconds: float, pool: str
) -> None:
    check_long_spills(Controller, wait_limit_seconds, pool)


def test_what_fits_nowhere_else_goes_to_the_long_tier_whatever_the_threshold() -> None:
    fleet = Fleet(Controller, TIERS)
    assert fleet.arrive(190_000, 10).pool == "large"
    assert fleet.arrive(100_000, 10).pool == "small"


def test_without_a_pool_it_fits_a_prompt_is_told_so_and_while_that_pool_is_down_to_come_again() -> None:
    fleet = Fleet(Controller, TIERS, TIERED)
    never = fleet.arrive(1_200_000, 10).refused
    assert never is not None
    assert (never.reason, never.limit_tokens) == (Reason.CONTEXT_LENGTH_EXCEEDED, LARGE - 6)
    fleet.step(PoolDown("large"))
    later = fleet.arrive(HUGE, 10).refused
    assert later is not None
    assert later.reason is Reason.NO_BACKEND
    assert later.retry_after_seconds is not None
    assert fleet.arrive(100_000, 10).pool == "small"  # it fits, and there is nothing better


def test_who_waits_for_a_pool_that_went_down_waits_for_its_return_where_nothing_else_takes_it() -> None:
    fleet = Fleet(Controller, TIERS, TIERED)
    fleet.arrive(900_000, 10)
    waiting = fleet.arrive(HUGE, 10)
    fleet.step(PoolDown("large"))
    fleet.run(100.0)
    assert waiting.sent_at is None
    assert waiting.refused is None
    fleet.step(PoolUp("large", TIERS["large"]))
    fleet.run(200.0)
    assert waiting.pool == "large"


# --- conversations --------------------------------------------------------------------------------


def context(name: str, tokens: int) -> tuple[Segment, ...]:
    return tuple(Segment(f"{name} {end}".encode(), 512) for end in range(512, tokens + 1, 512))


def talk(fleet: Fleet, tokens: int) -> Seen:
    """One turn of a conversation, whose context is all in segments."""
    return fleet.arrive(tokens, 50, name="turn", segments=context("talk", tokens), session="talk")


def check_pinned(make: Make, ahead_tokens: int, moves: bool) -> None:
    """48K are resident on one pool, where `ahead_tokens` are being prefilled when the next turn comes."""
    fleet = Fleet(make, TWINS, Limits(session_hold_seconds=30.0))
    first = talk(fleet, 48_000)
    fleet.run(10.0)
    if ahead_tokens:
        other = {"a": "b", "b": "a"}[first.pool]
        fleet.step(PoolDown(other))
        fleet.arrive(ahead_tokens, 500)
        fleet.step(PoolUp(other, TWINS[other]))
        fleet.run(10.5)
    else:
        fleet.arrive(3000, 2000)  # beside the conversation the other pool is the emptier one for a moment
        fleet.run(10.5)
    second = talk(fleet, 49_000)
    fleet.run(60.0)
    if moves:
        assert second.pool != first.pool, "it waits longer than its prefill takes elsewhere"
    else:
        assert second.pool == first.pool, "it is prefilled again for nothing"


@pytest.mark.parametrize(("ahead_tokens", "moves"), [(0, False), (20_000, False), (100_000, True)])
def test_a_conversation_moves_only_when_waiting_costs_more_than_its_prefill(
    ahead_tokens: int, moves: bool
) -> None:
    check_pinned(Controller, ahead_tokens, moves)


# --- work stealing --------------------------------------------------------------------------------


def check_stealing(make: Make) -> None:
    """Both pools are full for long, as far as anyone knows. One turns out to be free at once."""
    fleet = Fleet(make, TWINS)
    blockers = [fleet.arrive(150_000, 2000), fleet.arrive(150_000, 50, max_tokens=4000)]
    assert {s.pool for s in blockers} == {"a", "b"}
    fleet.run(7.6)  # both are decoding
    waiting = [fleet.arrive(100_000, 50, name="waiting") for _ in range(2)]
    fleet.run(120.0)
    fleet.check_empty()
    assert blockers[1].ended_at is not None
    starts = [s.sent_at or math.inf for s in waiting]
    assert starts[0] <= blockers[1].ended_at + 0.3, "it waits beside an idle pool"
    assert starts == sorted(starts), "the later one goes first"


def test_what_is_queued_goes_to_a_pool_that_turns_out_to_be_idle_in_order() -> None:
    check_stealing(Controller)


def test_a_pool_without_the_model_or_the_room_steals_nothing() -> None:
    pools = {
        "a": PoolFacts(SMALL, models=("m",)),
        "other": PoolFacts(SMALL, models=("n",)),
        "tiny": PoolFacts(50_000, models=("m",)),
    }
    fleet = Fleet(Controller, pools)
    sent = [fleet.arrive(150_000, 200, model="m") for _ in range(3)]
    fleet.run(200.0)
    fleet.check_empty()
    assert {s.pool for s in sent} == {"a"}


# --- models ---------------------------------------------------------------------------------------


def pool_or_reason(fleet: Fleet, model: str) -> str:
    seen = fleet.arrive(1000, 10, model=model)
    fleet.run(fleet.now + 5.0)
    return seen.refused.reason.value if seen.refused is not None else seen.pool


@pytest.mark.parametrize(
    ("pools", "strict", "model", "goes_to"),
    [
        ({"a": ("m",), "b": ("n",)}, False, "n", "b"),
        ({"a": ("m",), "b": ("n",)}, False, "n:adapter", "b"),
        ({"a": ("m",), "b": ("m", "m:adapter")}, False, "m:adapter", "b"),
        ({"a": ("m",), "b": ("n",)}, False, "x", "model_not_found"),
        ({"a": ("m",), "b": ("n",)}, True, "", "a"),  # /generate names none
        ({"a": ("m",)}, False, "x", "a"),  # SGLang itself serves any name
        ({"a": ("m",), "b": ("m",)}, False, "x", "a"),
        ({"a": ("m",)}, True, "x", "model_not_found"),
        ({"a": ("m",), "b": ()}, True, "x", "b"),  # a server that reports none takes any
        ({"a": ("m",), "b": ()}, True, "m", "a"),
        ({"a": ()}, True, "x", "a"),
    ],
)
def test_a_name_leads_to_who_serves_it(
    pools: dict[str, tuple[str, ...]], strict: bool, model: str, goes_to: str
) -> None:
    facts = {name: PoolFacts(SMALL, models=models) for name, models in pools.items()}
    assert pool_or_reason(Fleet(Controller, facts, Limits(strict_models=strict)), model) == goes_to


def test_an_explanation_says_the_same_and_admits_nothing() -> None:
    pools = {"a": PoolFacts(SMALL, models=("m",)), "b": PoolFacts(SMALL, models=("n",))}
    fleet = Fleet(Controller, pools)
    for model, pool, reason in (("n", "b", None), ("x", None, Reason.MODEL_NOT_FOUND)):
        explanation = explain(fleet.controller, Request("e", 1000, 10, model=model), fleet.now)
        assert (explanation.pool, explanation.reason) == (pool, reason)
    too_long = explain(fleet.controller, Request("e", 200_000, 10, model="n"), fleet.now)
    assert (too_long.reason, too_long.limit_tokens) == (Reason.CONTEXT_LENGTH_EXCEEDED, SMALL - 6)
    fleet.step(PoolDown("b"))
    assert explain(fleet.controller, Request("e", 10, 10, model="n"), 0.0).reason is Reason.NO_BACKEND
    assert fleet.controller.jobs == {}


def test_a_model_whose_server_is_down_is_not_unknown() -> None:
    pools = {"a": PoolFacts(SMALL, models=("m",)), "b": PoolFacts(SMALL, models=("n",))}
    fleet = Fleet(Controller, pools)
    fleet.step(PoolDown("b"))
    assert pool_or_reason(fleet, "n") == "no_backend"
    assert pool_or_reason(fleet, "x") == "model_not_found"


def test_until_all_have_said_what_they_serve_no_name_is_taken_for_another() -> None:
    fleet = Fleet(Controller, {"a": PoolFacts(SMALL, models=("m",)), "b": PoolFacts(SMALL, models=("n",))})
    for pool in ("a", "b"):
        fleet.step(PoolGone(pool))
    fleet.step(PoolDown("b"))  # it was never seen
    fleet.step(PoolUp("a", fleet.pools["a"]))
    assert pool_or_reason(fleet, "n") == "no_backend"
    fleet.step(PoolUp("b", fleet.pools["b"]))
    assert pool_or_reason(fleet, "n") == "b"
    fleet.step(PoolLeaving("b"))
    assert pool_or_reason(fleet, "n") == "no_backend"
    fleet.step(PoolGone("b"))
    assert pool_or_reason(fleet, "n") == "model_not_found"  # it was another's name
    assert pool_or_reason(fleet, "x") == "a"  # one model is left: SGLang serves any name as that


# --- changes while it runs ------------------------------------------------------------------------


def check_leaving(make: Make) -> None:
    fleet = Fleet(make, TWINS)
    running = [fleet.arrive(150_000, 500) for _ in range(2)]
    queued = [fleet.arrive(150_000, 100) for _ in range(2)]
    fleet.run(8.0)
    fleet.step(PoolLeaving("a"))
    late = fleet.arrive(1000, 10)
    fleet.run(300.0)
    assert all(s.ended_at for s in running), "what ran there was cut off"
    assert [s.pool for s in (*queued, late)] == ["b", "b", "b"], "it waits for a pool that leaves"
    fleet.check_empty()
    fleet.step(PoolGone("a"))
    assert list(fleet.controller.lines) == ["b"]


def test_a_pool_that_leaves_ends_what_it_has_and_takes_nothing_new() -> None:
    check_leaving(Controller)


def test_when_the_last_pool_leaves_the_queued_wait_for_another() -> None:
    fleet = Fleet(Controller, {"a": PoolFacts(SMALL)})
    fleet.arrive(150_000, 100)
    queued = fleet.arrive(150_000, 100)
    fleet.step(PoolLeaving("a"))
    fleet.run(60.0)
    refused = fleet.arrive(100, 10).refused
    assert refused is not None
    assert refused.reason is Reason.NO_BACKEND
    fleet.pools = {"a": PoolFacts(SMALL), "c": PoolFacts(SMALL)}
    fleet._prefill_free_at["c"] = 0.0
    fleet.step(PoolUp("c", PoolFacts(SMALL)))
    fleet.run(90.0)
    assert queued.pool == "c"


def test_new_limits_count_from_the_next_decision_on() -> None:
    fleet = Fleet(Controller, TIERS)
    assert fleet.arrive(70_000, 10).pool == "small"
    fleet.run(20.0)
    fleet.step(NewLimits(replace(TIERED, max_prompt_tokens=400_000)))
    assert fleet.arrive(70_000, 10).pool == "large"
    refused = fleet.arrive(500_000, 10).refused
    assert refused is not None
    assert refused.limit_tokens == 400_000


def test_a_larger_queue_promise_keeps_those_who_already_wait() -> None:
    fleet = Fleet(Controller, {"a": PoolFacts(SMALL)}, Limits(max_long_contexts=1))
    fleet.arrive(20_000, 2000)
    waiting = fleet.arrive(20_000, 10)
    fleet.run(3.0)
    assert waiting.sent_at is None
    fleet.step(NewLimits(Limits()))
    assert waiting.sent_at == fleet.now


@pytest.mark.parametrize(
    ("check", "wrong", "because"),
    [
        (check_tiers, Tierless, "runs on the small pool"),
        (check_tiers, SpillsAtOnce, "runs on the small pool"),
        (check_short_spills, NoSpill, "beside an idle pool"),
        (check_short_stays, SpillsAtOnce, "takes the long ones' place"),
        (
            partial(check_long_spills, wait_limit_seconds=600.0, pool="large"),
            SpillsAtOnce,
            "to the small pool",
        ),
        (partial(check_long_spills, wait_limit_seconds=5.0, pool="small"), NoSpill, "is refused"),
        (partial(check_pinned, ahead_tokens=0, moves=False), Forgetful, "again for nothing"),
        (partial(check_pinned, ahead_tokens=100_000, moves=True), Glued, "waits longer"),
        (check_stealing, NoStealing, "beside an idle pool"),
        (check_leaving, LeavesTheQueue, "waits for a pool that leaves"),
    ],
    ids=named,
)
def test_the_scenarios_of_routing_fail_for_wrong_policies(
    check: Callable[[Make], None], wrong: Make, because: str
) -> None:
    with pytest.raises(AssertionError, match=because):
        check(wrong)


def test_among_many_pools_an_idle_one_is_found_and_the_work_is_even() -> None:
    fleet = Fleet(Controller, {f"p{number:02}": PoolFacts(SMALL) for number in range(40)})
    sent = [fleet.arrive(100_000, 100) for _ in range(40)]
    assert len({s.pool for s in sent}) == 40
    queued = [fleet.arrive(100_000, 100) for _ in range(40)]
    assert max(len(line) for line in fleet.controller.lines.values()) == 1
    fleet.run(60.0)
    fleet.check_empty()
    assert len({s.pool for s in queued}) == 40
