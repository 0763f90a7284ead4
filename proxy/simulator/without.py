"""Would anything have been different without this limit? The same traffic, decided again, compared.

A limit that never acted leaves every decision as it was. The replay without it ends at the first
decision that differs: a request sent or refused that was not, or not at that time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.admission.types import Action, Dispatch, Event, Refuse
from proxy.simulator.conditions import Conditions
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.virtual import replay
from proxy.simulator.watched import Decision, Watched
from proxy.simulator.workload import Workload

# Decisions this close are the same: a limit also sets when the controller looks again, up to a poll later.
SAME_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that differs: of `rid`, at `at` seconds, and in words what the limit did to it."""

    at: float
    rid: str
    what: str


def first_difference(
    workload: Workload,
    config: EngineConfig,
    other: Watched,
    conditions: Conditions,
    decided: Sequence[Decision],
) -> Difference | None:
    """Replays `workload` with the controller `other` until it decides otherwise than `decided`.

    None: all the same to the end.
    """
    comparing = _Comparing(other, decided)
    try:
        replay(workload, config, comparing, conditions=conditions)
        comparing.end()
    except _Differs as found:
        return found.difference
    return None


class _Differs(Exception):
    def __init__(self, at: float, rid: str, what: str) -> None:
        super().__init__(what)
        self.difference = Difference(at, rid, what)


class _Comparing:
    """A controller that raises at its first decision that is not the one expected."""

    def __init__(self, controller: Watched, decided: Sequence[Decision]) -> None:
        self._controller = controller
        self._expected: dict[str, Decision] = {}
        for decision in decided:  # a full server hands a request back: its first time counts
            self._expected.setdefault(decision.rid, decision)
        self._in_order = decided
        self._passed = 0  # of those in order, all before this one are met
        self._met: set[str] = set()

    def step(self, now: float, event: Event) -> Sequence[Action]:
        actions = self._controller.step(now, event)
        for action in actions:
            if isinstance(action, Dispatch | Refuse):
                self._compare(now, action.rid, dispatched=isinstance(action, Dispatch))
        self._overdue(now - SAME_SECONDS)
        return actions

    def next_wakeup(self, now: float) -> float | None:
        return self._controller.next_wakeup(now)

    def end(self) -> None:
        self._overdue(float("inf"))

    def _compare(self, now: float, rid: str, *, dispatched: bool) -> None:
        if rid in self._met:
            return
        self._met.add(rid)
        then = self._expected.get(rid)
        if then is None:
            raise _Differs(now, rid, "never decided on, without it it was")
        if then.dispatched != dispatched:
            what = "sent, without it refused" if then.dispatched else "refused, without it sent"
            raise _Differs(min(now, then.at), rid, what)
        if now < then.at - SAME_SECONDS:
            done = "sent" if then.dispatched else "refused"
            raise _Differs(now, rid, f"{done} {then.at - now:.1f} s later than without")

    def _overdue(self, until: float) -> None:
        while self._passed < len(self._in_order):
            decision = self._in_order[self._passed]
            if decision.rid not in self._met:
                if decision.at >= until:
                    return
                what = "sent earlier than without" if decision.dispatched else "refused, without it held"
                raise _Differs(decision.at, decision.rid, what)
            self._passed += 1
