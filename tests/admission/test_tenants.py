"""Tenants' own limits: kept exactly, named when reached, and given back once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits, Mode
from proxy.admission.tenants import Tenants
from proxy.admission.types import (
    UNLIMITED,
    Arrival,
    Dispatch,
    Finished,
    FirstToken,
    Gone,
    PoolFacts,
    PoolGone,
    PoolUp,
    Reason,
    Refuse,
    Request,
    Segment,
    TenantLimit,
    TenantLimits,
)

POOL = 100_000


def request(rid: str, prompt_tokens: int = 1000, **fields: Any) -> Request:
    known: dict[str, Any] = {"max_tokens": 100, "tenant": "t", "wait_limit_seconds": 600.0}
    return Request(rid, prompt_tokens, **{**known, **fields})


class World:
    """One pool of 100,000 tokens; `arrive` gives back what became of a request at once."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.controller = Controller(limits)
        self.now = 0.0
        self.controller.step(0.0, PoolUp("p", PoolFacts(POOL)))

    def arrive(self, rid: str, prompt_tokens: int = 1000, **fields: Any) -> Dispatch | Refuse | None:
        actions = self.controller.step(self.now, Arrival(request(rid, prompt_tokens, **fields)))
        mine = [action for action in actions if action.rid == rid and isinstance(action, Dispatch | Refuse)]
        return mine[0] if mine else None

    def end(self, rid: str, completion_tokens: int | None = None) -> None:
        self.controller.step(self.now, FirstToken(rid))
        self.controller.step(self.now, Finished(rid, None, completion_tokens))

    def refused(self, rid: str, prompt_tokens: int = 1000, **fields: Any) -> Refuse:
        answer = self.arrive(rid, prompt_tokens, **fields)
        assert isinstance(answer, Refuse)
        assert answer.reason is Reason.TENANT_LIMIT
        return answer


def test_one_request_more_than_a_tenant_may_have_is_refused_and_the_limit_named() -> None:
    world, limits = World(), TenantLimits(concurrent_requests=2)
    assert isinstance(world.arrive("a", limits=limits), Dispatch)
    assert isinstance(world.arrive("b", limits=limits), Dispatch)
    refuse = world.refused("c", limits=limits)
    assert refuse.tenant_limit == TenantLimit("concurrent_requests", 2, 2)
    assert refuse.retry_after_seconds is not None
    assert isinstance(world.arrive("d", tenant="another", limits=limits), Dispatch)
    world.end("a")
    assert isinstance(world.arrive("e", limits=limits), Dispatch)


def test_queued_requests_count_as_well() -> None:
    world, limits = World(), TenantLimits(concurrent_requests=2)
    world.arrive("a", 90_000, limits=limits)
    assert world.arrive("b", 90_000, limits=limits) is None
    world.refused("c", 10, limits=limits)
    world.controller.step(world.now, Gone("b"))
    assert world.arrive("d", 90_000, limits=limits) is None


def test_tokens_that_a_tenant_claims_are_prompts_and_reserves_queued_and_running() -> None:
    world, limits = World(), TenantLimits(resident_tokens=10_000)
    assert isinstance(world.arrive("a", 5000, limits=limits), Dispatch)
    assert world.arrive("b", 4800, limits=limits) is None  # it waits for the chunk, and counts
    refuse = world.refused("c", 1000, limits=limits)
    assert refuse.tenant_limit == TenantLimit("resident_tokens", 10_000, 10_000)
    world.end("a")
    assert isinstance(world.arrive("d", 1000, limits=limits), Dispatch)


def test_what_alone_is_more_than_the_tenant_may_hold_is_told_not_to_come_again() -> None:
    refuse = World().refused("a", 20_000, limits=TenantLimits(resident_tokens=10_000))
    assert refuse.retry_after_seconds is None
    assert refuse.needed_tokens == 20_100


def test_a_minutes_tokens_come_back_evenly_and_the_time_told_is_the_time_it_takes() -> None:
    world, limits = World(), TenantLimits(tokens_per_minute=6000)
    assert isinstance(world.arrive("a", 5000, limits=limits), Dispatch)
    world.end("a", 100)  # 900 are left
    refuse = world.refused("b", 1900, limits=limits)
    assert refuse.tenant_limit == TenantLimit("tokens_per_minute", 6000, 5100)
    assert refuse.predicted_wait_seconds == pytest.approx(11.0)  # 1,100 at 100 a second
    world.now = 10.9
    world.refused("c", 1900, limits=limits)
    world.now = 11.1
    assert isinstance(world.arrive("d", 1900, limits=limits), Dispatch)


def test_an_output_shorter_than_its_reserve_gives_the_rest_back() -> None:
    world, limits = World(), TenantLimits(tokens_per_minute=6000)
    world.arrive("a", 1000, max_tokens=4000, limits=limits)
    world.refused("b", 1500, limits=limits)
    world.end("a", 10)
    assert isinstance(world.arrive("c", 1500, limits=limits), Dispatch)


def test_who_leaves_before_anything_was_sent_has_used_nothing_of_the_minute() -> None:
    world, limits = World(), TenantLimits(tokens_per_minute=6000)
    world.arrive("a", 5000, limits=limits)
    world.controller.step(world.now, Gone("a", reached_engine=False))
    assert isinstance(world.arrive("b", 5000, limits=limits), Dispatch)


def test_a_request_larger_than_a_minute_passes_when_the_minute_is_full_and_leaves_a_debt() -> None:
    world, limits = World(), TenantLimits(tokens_per_minute=6000)
    assert isinstance(world.arrive("a", 18_000, limits=limits), Dispatch)
    world.end("a", 0)
    refuse = world.refused("b", 6000, limits=limits)
    assert refuse.predicted_wait_seconds == pytest.approx(180.0)


def test_a_refused_request_has_taken_nothing() -> None:
    world = World()
    limits = TenantLimits(concurrent_requests=1, tokens_per_minute=6000)
    world.arrive("a", 100, limits=limits)
    for number in range(50):
        world.refused(f"b{number}", 5000, limits=limits)
    assert world.controller.tenants.usage("t") == (1, 200)
    world.end("a", 100)
    assert isinstance(world.arrive("c", 5000, limits=limits), Dispatch)


def test_limits_of_a_request_are_those_it_came_with() -> None:
    world = World()
    world.arrive("a", limits=TenantLimits(concurrent_requests=1))
    assert isinstance(world.arrive("b", limits=TenantLimits(concurrent_requests=2)), Dispatch)


def test_shadow_mode_says_that_a_tenant_would_have_been_refused_and_off_says_nothing() -> None:
    for mode, verdict in ((Mode.SHADOW, "refuse"), (Mode.OFF, "")):
        world, limits = World(Limits(mode=mode)), TenantLimits(concurrent_requests=1)
        world.arrive("a", limits=limits)
        answer = world.arrive("b", limits=limits)
        assert isinstance(answer, Dispatch)
        assert answer.verdict == verdict
        world.end("a")
        world.end("b")
        assert len(world.controller.tenants) == 0


def test_a_pool_that_goes_away_gives_back_what_its_requests_claimed() -> None:
    world = World()
    world.arrive("a")
    world.controller.step(world.now, PoolGone("p"))
    assert len(world.controller.tenants) == 0
    assert world.controller.jobs == {}


def turn(world: World, session: str, limits: TenantLimits) -> int:
    """One turn of a conversation of 6,000 tokens; gives back what is held after it."""
    segments = tuple(Segment(f"{session} {number}".encode(), 600) for number in range(10))
    rid = f"{session} {world.now}"
    assert isinstance(world.arrive(rid, 6000, segments=segments, session=session, limits=limits), Dispatch)
    world.end(rid, 10)
    world.now += 1.0
    return world.controller.lines["p"].pool.held_tokens


def test_what_is_held_between_turns_counts_among_a_tenants_resident_tokens() -> None:
    world, limits = World(), TenantLimits(resident_tokens=10_000)
    assert turn(world, "x", limits) == 6000
    assert turn(world, "y", limits) == 6000  # both would be more than it may have
    assert turn(world, "z", UNLIMITED) == 12_000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9000), st.floats(0, 30)), max_size=60))
def test_no_tenant_ever_has_more_than_its_limits(steps: list[tuple[int, int, float]]) -> None:
    limits = TenantLimits(concurrent_requests=3, resident_tokens=12_000, tokens_per_minute=60_000)
    tenants, now, open_requests, taken = Tenants(), 0.0, list[Request](), 0
    for number, (what, tokens, pause) in enumerate(steps):
        now += pause
        if what and open_requests:
            tenants.give_back(open_requests.pop(), 0, 0) if what == 1 else None
        item = request(f"r{number}", tokens, limits=limits)
        if tenants.objection(item, tokens, tokens, now) is None:
            tenants.take(item, 0, tokens, now)
            open_requests.append(item)
            taken += tokens
        assert tenants.usage("t")[0] == len(open_requests) <= 3
        assert taken <= 60_000 + 1000 * now + 1  # a full minute, and what has come since
