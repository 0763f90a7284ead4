import pytest

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.slicing import ALIGN_TOKENS
from proxy.admission.types import (
    Action,
    Arrival,
    Dispatch,
    Event,
    Gone,
    PoolFacts,
    PoolUp,
    Request,
    Slice,
    Sliceable,
    SliceDone,
    Tick,
    Tokenize,
)

POOL = 186_624


class Drive:
    def __init__(self, limits: Limits | None = None, **facts: object) -> None:
        self.controller = Controller(limits or Limits())
        self.now = 0.0
        self.step(PoolUp("p", PoolFacts(POOL, POOL - 6, 1_000_000, 64, **facts)))  # type: ignore[arg-type]

    def step(self, event: Event) -> list[Action]:
        return self.controller.step(self.now, event)

    def long(self, rid: str = "L", tokens: int = 64_000) -> list[Action]:
        return self.step(Arrival(Request(rid, tokens, 500, sliceable=True, wait_limit_seconds=600)))

    def play(self, actions: list[Action], rid: str = "L") -> list[Action]:
        """Answer each slice as a healthy engine does, until the request itself is sent."""
        played: list[Action] = []
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            played.append(action)
            if isinstance(action, Slice):
                self.now += 0.2
                before = [a.end_tokens for a in played if isinstance(a, Slice)][-2:-1] or [0]
                queue += self.step(SliceDone(rid, action.end_tokens, before[0]))
        return played


def test_a_long_prompts_ids_are_asked_for_and_then_it_enters_in_growing_aligned_slices() -> None:
    drive = Drive()
    assert drive.long() == [Tokenize("L", "p")]
    played = drive.play(drive.step(Sliceable("L", 64_010)))
    ends = [action.end_tokens for action in played if isinstance(action, Slice)]
    assert ends == sorted(set(ends))
    assert all(end % ALIGN_TOKENS == 0 for end in ends)
    assert 0 <= 64_010 - ends[-1] <= ALIGN_TOKENS
    assert isinstance(played[-1], Dispatch)


def test_the_whole_prompt_is_charged_from_the_first_slice() -> None:
    drive = Drive()
    drive.long()
    drive.step(Sliceable("L", 64_010))
    assert drive.controller.lines["p"].pool.committed_tokens == 64_010 + 500


def test_slices_are_sized_by_time_while_shorts_come() -> None:
    drive = Drive(chunk_tokens=32_768)
    pool = drive.controller.lines["p"].pool
    for depth in range(0, 160_000, 8192):
        pool.costs.learn_prefill(8192, depth + 4096, 8192 * (17.6e-6 + 0.977e-9 * (depth + 4096)))
    drive.step(Arrival(Request("s", 300, 150)))
    drive.long(tokens=150_000)
    (first,) = drive.step(Sliceable("L", 150_000))
    assert isinstance(first, Slice)
    assert pool.costs.prefill_seconds(first.end_tokens) == pytest.approx(0.2, rel=0.1)


def test_without_ids_the_prompt_goes_whole() -> None:
    drive = Drive()
    drive.long()
    (action,) = drive.step(Sliceable("L", None))
    assert isinstance(action, Dispatch)


def test_a_failed_slice_sends_the_rest_whole() -> None:
    drive = Drive()
    drive.long()
    (first,) = [a for a in drive.step(Sliceable("L", 64_010)) if isinstance(a, Slice)][:1]
    actions = drive.step(SliceDone("L", first.end_tokens, None))
    drive.now += 5
    actions += drive.step(Tick())
    pending = list(drive.controller.jobs["L"].slice_ends)
    for end in pending:
        actions += drive.step(SliceDone("L", end, 0))
    assert any(isinstance(a, Dispatch) for a in actions)


def test_two_misses_in_ten_turn_slicing_off_for_ten_minutes() -> None:
    drive = Drive()
    slicing = drive.controller.lines["p"].pool.slicing
    for rid in ("L1", "L2"):
        drive.step(Arrival(Request(rid, 64_000, 500, sliceable=True, wait_limit_seconds=600)))
        actions = drive.step(Sliceable(rid, 64_010))
        for action in [a for a in actions if isinstance(a, Slice)]:
            drive.step(SliceDone(rid, action.end_tokens, None))
        drive.now += 1
        drive.step(Gone(rid, reached_engine=False))
    assert slicing.off(drive.now)
    assert not slicing.off(drive.now + 601)


def test_no_slices_without_a_radix_cache() -> None:
    (action,) = Drive(radix_cache=False).long()
    assert isinstance(action, Dispatch)


def test_zero_seconds_turn_slicing_off() -> None:
    (action,) = Drive(Limits(slice_seconds=0)).long()
    assert isinstance(action, Dispatch)


def test_a_client_that_leaves_between_slices_gives_everything_back_at_once() -> None:
    drive = Drive()
    drive.long()
    drive.step(Gone("L"))
    pool = drive.controller.lines["p"].pool
    assert (pool.committed_tokens, pool.backlog_tokens, pool.sliced) == (0, 0, None)


def test_a_client_that_leaves_during_a_slice_keeps_its_charge_until_the_slice_ends() -> None:
    drive = Drive()
    drive.long()
    slices = [a for a in drive.step(Sliceable("L", 64_010)) if isinstance(a, Slice)]
    drive.step(Gone("L"))
    pool = drive.controller.lines["p"].pool
    assert pool.committed_tokens > 0
    for action in slices:
        drive.step(SliceDone("L", action.end_tokens, 0))
    assert (pool.committed_tokens, pool.backlog_tokens, pool.sliced) == (0, 0, None)
