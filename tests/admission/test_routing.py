"""Whatever happens to several pools, in whatever order: nothing is lost, sent twice or left charged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.books import DEADLINES_SLACK
from proxy.admission.controller import Controller
from proxy.admission.job import State
from proxy.admission.limits import Limits
from proxy.admission.types import (
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Gone,
    NewLimits,
    PoolDown,
    PoolFacts,
    PoolGone,
    PoolLeaving,
    PoolUp,
    Reason,
    Refuse,
    Request,
    Requeue,
    TenantLimits,
    Tick,
)

FACTS = {
    "a": PoolFacts(30_000, models=("m",)),
    "b": PoolFacts(60_000, models=("m",), tier="long"),
    "c": PoolFacts(30_000, models=("n",)),
}
LIMITS = TenantLimits(concurrent_requests=6, resident_tokens=50_000, tokens_per_minute=2_000_000)
steps = st.tuples(
    st.sampled_from(["arrive"] * 5 + ["first", "finish", "gone", "requeue", "wait"] + ["pool"] * 2),
    st.integers(0, 1000),
    st.integers(1, 60_000),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["up", "up", "down", "leaving", "gone", "limits"]),
)


class World:
    """Checks after every event that each request is in one place, and that it may be there."""

    def __init__(self) -> None:
        self.controller = Controller(Limits(long_tier_tokens=20_000))
        self.now = 0.0
        self.sent: set[str] = set()
        self.answered: set[str] = set()
        self.arrived = 0
        for pool in FACTS:
            self.step(PoolUp(pool, FACTS[pool]))

    def step(self, event: Event) -> None:
        if isinstance(event, Requeue):
            self.sent.discard(event.rid)
        for action in self.controller.step(self.now, event):
            if isinstance(action, Dispatch):
                assert action.rid not in self.sent | self.answered
                self.check_place(action)
                self.sent.add(action.rid)
            elif isinstance(action, Refuse):
                assert action.rid not in self.sent | self.answered
                self.answered.add(action.rid)
        self.check()

    def check_place(self, action: Dispatch) -> None:
        request, pool = self.controller.jobs[action.rid].request, self.controller.lines[action.pool].pool
        assert pool.open
        assert request.prompt_tokens <= pool.max_prompt_tokens
        known = {model for line in self.controller.lines.values() for model in line.pool.facts.models}
        assert request.model in pool.facts.models or request.model not in known

    def check(self) -> None:
        controller = self.controller
        queued = [job.rid for line in controller.lines.values() for job in line.jobs()]
        running = [rid for line in controller.lines.values() for rid in line.pool.jobs]
        homeless = list(controller._homeless)
        assert sorted([*queued, *running, *homeless]) == sorted(controller.jobs)
        for line in controller.lines.values():
            assert not line.pool.leaving or not len(line)
            assert line.pool.committed_tokens >= 0
            assert line.pool.running_slots >= 0
        for tenant in ("s", "t"):
            mine = [job for job in controller.jobs.values() if job.request.tenant == tenant]
            claimed = sum(job.claimed_tokens for job in mine)
            assert controller.tenants.usage(tenant) == (len(mine), claimed)
            assert len(mine) <= 6
            assert claimed <= 50_000

    def arrive(self, tokens: int) -> None:
        self.arrived += 1
        request = Request(
            f"r{self.arrived}",
            tokens,
            max_tokens=100,
            model="mn"[tokens % 2],
            tenant="st"[self.arrived % 2],
            limits=LIMITS,
            wait_limit_seconds=30.0,
        )
        self.step(Arrival(request))

    def pool(self, pool: str, what: str) -> None:
        facts = self.controller.lines[pool].pool.facts if pool in self.controller.lines else FACTS[pool]
        events: dict[str, Event] = {
            "up": PoolUp(pool, facts),
            "down": PoolDown(pool),
            "leaving": PoolLeaving(pool),
            "gone": PoolGone(pool),
            "limits": NewLimits(Limits(long_tier_tokens=10_000, max_long_contexts=1)),
        }
        self.step(events[what])

    def happen(self, what: str, which: int) -> None:
        rids = sorted(self.controller.jobs)
        if not rids:
            return
        rid = rids[which % len(rids)]
        state = self.controller.jobs[rid].state
        events: dict[str, Event] = {
            "first": FirstToken(rid),
            "finish": Finished(rid, None, 10),
            "gone": Gone(rid, reached_engine=bool(which % 2)),
            "requeue": Requeue(rid) if state in (State.PREFILL, State.DECODE) else Tick(),
        }
        self.step(events[what])
        if what == "requeue" and state not in (State.PREFILL, State.DECODE):
            return
        if what in ("finish", "gone") and rid not in self.controller.jobs:
            self.answered.add(rid)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=70))
def test_nothing_is_lost_sent_twice_or_left_charged(drawn: list[tuple[str, int, int, str, str]]) -> None:
    world = World()
    for what, which, tokens, pool, change in drawn:
        if what == "arrive":
            world.arrive(tokens)
        elif what == "pool":
            world.pool(pool, change)
        elif what == "wait":
            world.now += which / 100
            world.step(Tick())
        else:
            world.happen(what, which)
    for _ in range(200):
        for rid in sorted(world.controller.jobs):
            if rid in world.controller.jobs and world.controller.jobs[rid].state is not State.QUEUED:
                world.step(Finished(rid, None, 5))
        world.now += 1.0
        world.step(Tick())
    assert world.controller.jobs == {}
    assert len(world.controller.tenants) == 0
    for line in world.controller.lines.values():
        assert line.pool.committed_tokens == line.pool.backlog_tokens == line.pool.running_slots == 0
        assert line.pool.engine_tokens == 0


# --- requests that only one pool can serve ---


def pools(*names: str) -> Controller:
    controller = Controller(Limits())
    for name in names:
        controller.step(0.0, PoolUp(name, PoolFacts(30_000, models=(f"model of {name}",))))
    return controller


def decided(controller: Controller, rid: str, pinned_pool: str, tokens: int = 1000) -> Dispatch | Refuse:
    request = Request(rid, tokens, max_tokens=10, model="model of a", pinned_pool=pinned_pool)
    (action,) = controller.step(1.0, Arrival(request))
    assert isinstance(action, Dispatch | Refuse)
    return action


def test_a_pinned_request_goes_to_its_pool_whatever_the_others_are_good_for() -> None:
    controller = pools("a", "b", "c")
    for number in range(3):
        assert decided(controller, f"{number}", "b").pool == "b"  # type: ignore[union-attr]


def test_a_pinned_request_is_not_taken_over_by_a_pool_without_work() -> None:
    controller = pools("a", "b")
    assert isinstance(decided(controller, "fills it", "b", tokens=27_000), Dispatch)
    waiting = Request("waits", 20_000, max_tokens=10, pinned_pool="b", wait_limit_seconds=600.0)
    assert controller.step(1.0, Arrival(waiting)) == []
    for now in (2.0, 5.0, 9.0):
        assert controller.step(now, Tick()) == []
    assert controller.jobs["waits"].pool == "b"
    actions = controller.step(10.0, Finished("fills it", 27_000, 5))
    assert [action.pool for action in actions if isinstance(action, Dispatch)] == ["b"]


@pytest.mark.parametrize("before", [[], [PoolDown("b")]], ids=["up", "down"])
@pytest.mark.parametrize("event", [PoolLeaving("b"), PoolGone("b")], ids=["leaving", "gone"])
def test_who_waits_for_its_pool_is_told_at_once_that_it_goes(before: list[Event], event: Event) -> None:
    controller = pools("a", "b")
    assert isinstance(decided(controller, "fills it", "b", tokens=27_000), Dispatch)
    waiting = Request("waits", 20_000, max_tokens=10, pinned_pool="b", wait_limit_seconds=600.0)
    assert controller.step(1.0, Arrival(waiting)) == []
    for earlier in before:
        assert controller.step(2.0, earlier) == []  # it may come back
    (refuse,) = controller.step(3.0, event)
    assert isinstance(refuse, Refuse)
    assert (refuse.rid, refuse.reason) == ("waits", Reason.NO_BACKEND)
    assert "waits" not in controller.jobs


def test_a_pinned_request_is_refused_by_what_its_own_pool_can_take() -> None:
    controller = pools("a")
    controller.step(0.0, PoolUp("b", PoolFacts(300_000)))
    refuse = decided(controller, "too long", "a", tokens=200_000)
    assert isinstance(refuse, Refuse)
    assert refuse.reason is Reason.CONTEXT_LENGTH_EXCEEDED


def test_without_its_pool_a_pinned_request_is_told_that_no_backend_is_up() -> None:
    for event in (PoolDown("b"), PoolLeaving("b"), PoolGone("b")):
        controller = pools("a", "b")
        controller.step(0.5, event)
        refuse = decided(controller, "1", "b")
        assert isinstance(refuse, Refuse), event
        assert refuse.reason is Reason.NO_BACKEND


def test_a_server_that_comes_and_goes_makes_nobody_wait_under_many_deadlines() -> None:
    controller = pools("a")
    controller.step(0.0, Arrival(Request("fills it", 29_000, max_tokens=10)))
    for number in range(600):
        waits = Request(f"waits {number}", 20_000, max_tokens=10, wait_limit_seconds=600.0)
        controller.step(1.0, Arrival(waits))
    for _ in range(20):
        controller.step(2.0, PoolDown("a"))
        controller.step(2.0, PoolUp("a", PoolFacts(30_000, models=("model of a",))))
    waiting = sum(job.state is State.QUEUED for job in controller.jobs.values())
    assert waiting > 20
    assert len(controller._deadlines) <= 2 * len(controller.jobs) + DEADLINES_SLACK
    actions = controller.step(700.0, Tick())
    assert sum(isinstance(action, Refuse) for action in actions) == waiting
