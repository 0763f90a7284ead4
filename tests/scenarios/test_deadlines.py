"""Who waits again waits no longer than it was told at first."""

from proxy.admission.controller import Controller
from proxy.admission.types import PoolDown, Reason, Refuse, Requeue, Tick
from tests.scenarios.hand import POOL, Hand


def test_one_that_was_not_taken_by_a_server_that_is_down_by_then_hears_of_it_in_time() -> None:
    hand = Hand(Controller)
    rid = hand.run(300, 100)
    del hand.sent[rid]
    deadline = hand.controller.jobs[rid].deadline_at
    hand.controller.next_wakeup(hand.now)  # nobody waits: its deadline need not be kept
    hand.step(PoolDown(POOL))
    hand.step(Requeue(rid))
    assert hand.controller.next_wakeup(hand.now) == deadline
    hand.now = deadline
    (refused,) = hand.step(Tick())
    assert isinstance(refused, Refuse)
    assert (refused.rid, refused.reason) == (rid, Reason.NO_BACKEND)
    assert not hand.controller.jobs
