import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.residency import IdleCache
from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Event,
    Finished,
    FirstToken,
    Lane,
    PoolFacts,
    PoolUp,
    Request,
    Segment,
    Tick,
)

POOL = 186_624


def chain(name: str, count: int, tokens: int = 1000) -> tuple[Segment, ...]:
    return tuple(Segment(f"{name} {i}".encode(), tokens) for i in range(count))


class Talk:
    """One conversation against a controller on a hand-driven clock."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.controller = Controller(limits or Limits())
        self.now = 0.0
        self.turns = 0
        self.step(PoolUp("p", PoolFacts(POOL, POOL - 6, 1_000_000, 64)))

    def step(self, event: Event) -> list[Action]:
        return self.controller.step(self.now, event)

    def turn(self, segments: tuple[Segment, ...], session: str = "s", after: float = 3.0) -> Dispatch:
        self.turns += 1
        rid = f"r{self.turns}"
        self.now += after
        tokens = sum(s.tokens for s in segments) + 100
        (action,) = self.step(Arrival(Request(rid, tokens, 300, segments=segments, session=session)))
        assert isinstance(action, Dispatch)
        self.now += 0.5
        self.step(FirstToken(rid))
        self.now += 0.5
        self.step(Finished(rid, tokens, 300))
        return action

    @property
    def held(self) -> int:
        return self.controller.lines["p"].pool.held_tokens


def test_a_context_is_held_after_a_turn_of_a_named_conversation() -> None:
    talk = Talk()
    talk.turn(chain("a", 48))
    assert talk.held == 48_000
    assert talk.controller.lines["p"].pool.committed_tokens == 0


def test_an_unnamed_conversation_is_held_from_its_second_turn_on() -> None:
    talk = Talk()
    talk.turn(chain("a", 48), session="")
    assert talk.held == 0
    talk.turn(chain("a", 50), session="")
    assert talk.held == 50_000


def test_a_first_turn_without_a_name_is_held_once_others_have_come_back() -> None:
    talk = Talk()
    talk.turn(chain("a", 48), session="")
    talk.turn(chain("a", 50), session="")
    talk.step(Tick())
    talk.turn(chain("b", 30), session="")
    assert talk.held == 80_000


def test_first_turns_without_a_name_are_held_no_more_when_nothing_follows() -> None:
    talk = Talk()
    talk.turn(chain("a", 48), session="")
    talk.turn(chain("a", 50), session="")
    held = 0
    for number in range(6):
        talk.turn(chain(f"single {number}", 20), session="", after=60.0)
        held += talk.held == 20_000
    assert 1 <= held <= 3


def test_a_first_turn_is_held_no_longer_than_its_prefill_took() -> None:
    talk = Talk()
    talk.turn(chain("a", 48), session="")
    talk.turn(chain("a", 50), session="")
    talk.turn(chain("b", 20), session="", after=60.0)
    pool = talk.controller.lines["p"].pool
    (hold,) = pool.holds
    assert hold.until - hold.since == pytest.approx(pool.costs.prefill_seconds(20_000), rel=0.2)


def test_the_context_that_was_held_is_the_charge_of_the_next_turn_and_of_its_tenant() -> None:
    talk = Talk()
    talk.turn(chain("a", 48))
    pool = talk.controller.lines["p"].pool
    segments = chain("a", 50)
    talk.step(Arrival(Request("next", 50_100, 300, segments=segments, session="s")))
    job = pool.jobs["next"]
    assert pool.own_tokens(job) == pool.committed_tokens == 50_100 + job.reserve_tokens
    assert pool.tenant_tokens == {"default": pool.committed_tokens}
    assert pool.short_tokens == 2100 + job.reserve_tokens
    talk.step(Finished("next", 50_100, 300))
    assert (pool.committed_tokens, pool.short_tokens, pool.tenant_tokens) == (0, 0, {})


def test_the_next_turn_of_a_held_context_is_a_short() -> None:
    talk = Talk()
    assert talk.turn(chain("a", 48)).lane is Lane.LONG
    assert talk.turn(chain("a", 50)).lane is Lane.SHORT


def test_a_hold_ends_by_itself() -> None:
    talk = Talk(Limits(session_hold_seconds=10.0))
    talk.turn(chain("a", 48))
    talk.now += 10.5
    talk.step(Tick())
    assert talk.held == 0


def test_no_hold_where_holding_is_off() -> None:
    talk = Talk(Limits(session_hold_seconds=0.0))
    talk.turn(chain("a", 48))
    assert talk.held == 0


def test_a_hold_gives_way_to_a_short_that_needs_the_room() -> None:
    talk = Talk()
    talk.turn(chain("a", 150))
    assert talk.held == 150_000
    talk.now += 0.1
    actions = [talk.step(Arrival(Request(f"s{i}", 8000, 100))) for i in range(6)]
    assert any(isinstance(action, Dispatch) for step in actions for action in step)


def test_a_hold_gives_way_to_shorts_that_the_engines_formula_keeps_waiting() -> None:
    talk = Talk()
    for number in range(20):  # outputs are short here
        talk.step(Arrival(Request(f"t{number}", 300, None)))
        talk.step(FirstToken(f"t{number}"))
        talk.step(Finished(f"t{number}", 300, 100))
    talk.turn(chain("a", 150))
    talk.now += 0.1
    for number in range(20):  # without a limit of their own: the engine counts 4,096 for each
        talk.step(Arrival(Request(f"s{number}", 300, None, wait_limit_seconds=60.0)))
    line = talk.controller.lines["p"]
    assert len(line.shorts) > 5
    assert talk.held == 150_000
    talk.now += 1.1
    talk.step(Tick())
    assert (len(line.shorts), talk.held) == (0, 0)


def test_the_idle_cache_forgets_leaves_before_roots() -> None:
    cache = IdleCache()
    cache.add(list(chain("a", 4)))
    cache.trim(2000)
    assert cache.known_tokens(chain("a", 4)) == 2000
    cache.trim(0)
    assert (cache.tokens, len(cache)) == (0, 0)


def test_any_number_of_holds_gives_way_in_one_step() -> None:
    pool_tokens, count = 4_000_000, 1500
    talk = Talk(Limits(session_hold_seconds=60.0))
    talk.step(PoolUp("p", PoolFacts(pool_tokens, pool_tokens - 6, 8_000_000)))
    for number in range(count):
        segments = chain(f"agent {number}", 1, 2100)
        talk.step(Arrival(Request(f"a{number}", 2200, 10, segments=segments, session=f"s{number}")))
        talk.step(FirstToken(f"a{number}"))
        talk.step(Finished(f"a{number}", 2200, 10))
    pool = talk.controller.lines["p"].pool
    assert len(pool.holds) == count
    talk.now += 12.0
    actions = talk.step(Arrival(Request("giant", 3_800_000, 10, wait_limit_seconds=6000.0)))
    assert [action.rid for action in actions if isinstance(action, Dispatch)] == ["giant"]
    assert len(pool.holds) < 100


def test_a_hold_gives_way_to_a_long_that_only_lacks_the_room_kept_for_shorts() -> None:
    talk = Talk(Limits(session_hold_seconds=60.0))
    talk.turn(chain("a", 60))
    (hold,) = talk.controller.lines["p"].pool.holds
    assert hold.until == hold.since + 15.0
    assert not talk.step(Arrival(Request("long", 110_000, 300)))
    talk.now += 10.5
    (action,) = talk.step(Tick())
    assert (action.rid, talk.held) == ("long", 0)


def test_a_hold_does_not_give_way_to_what_lacks_a_slot() -> None:
    talk = Talk(Limits(session_hold_seconds=60.0))
    talk.step(PoolUp("p", PoolFacts(POOL, POOL - 6, 1_000_000, 1)))
    talk.turn(chain("a", 60))
    talk.step(Arrival(Request("running", 1000, 300)))
    assert not talk.step(Arrival(Request("waiting", 1000, 300)))
    assert talk.held == 60_000
