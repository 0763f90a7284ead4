"""Wrong policies: each is the controller with one thing done as it must not be done.

They are the reason to trust the scenarios: each scenario names those that it has to catch. Most
are what one would write first, or what other proxies do.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from proxy.admission.backfill import Gate, Rule
from proxy.admission.controller import Controller
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.sensor import Sensor
from proxy.admission.types import Action, Arrival, Event, PoolUp

Make = Callable[[Limits], Controller]


def named(value: object) -> str | None:
    """The ids of a table of checks and wrong policies: their names."""
    while isinstance(value, partial):
        value = value.func
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else "because"


class Rebuilt(Controller):
    """The controller with some of its parts replaced."""

    pool_type: ClassVar[type[Pool]] = Pool
    line_type: ClassVar[type[Line]] = Line
    gate_type: ClassVar[type[Gate]] = Gate
    sensor_type: ClassVar[type[Sensor]] = Sensor

    def _pool_up(self, now: float, event: PoolUp, actions: list[Action]) -> Iterable[Line]:
        if event.pool not in self.lines:
            pool = self.pool_type(event.pool, event.facts, self.limits)
            line = self.line_type(pool, self.limits, self.reservation, self.charges)
            line.gate = self.gate_type(pool)
            self.lines[event.pool] = line
        touched = super()._pool_up(now, event, actions)
        self._sensors[event.pool] = self.sensor_type(self.lines[event.pool].pool)
        return touched


# --- who passes a blocked head ------------------------------------------------------------------


class UnboundedSkip(Rebuilt):
    """Whatever fits goes: the head of the line waits for ever."""

    class gate_type(Gate):  # noqa: N801
        def closed(self, now: float) -> bool:
            return False

        def rule_for(self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float) -> Rule:
            return Rule.BYPASS


class StrictOrder(Rebuilt):
    """First come, first served: nobody passes a blocked head."""

    class gate_type(Gate):  # noqa: N801
        def rule_for(
            self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float
        ) -> Rule | None:
            return Rule.FIT if self.head is None or self.head is job else None


class NoGate(Rebuilt):
    """The head's age counts for nothing: shorts keep their share before a giant for ever."""

    class gate_type(Gate):  # noqa: N801
        def _old(self, now: float) -> bool:
            return False

        def _presses(self, head: Job, head_reserve_tokens: int, now: float) -> bool:
            return False


class GateSaysNothing(Rebuilt):
    """The gate closes and nobody can see it."""

    class gate_type(Gate):  # noqa: N801
        def closed(self, now: float) -> bool:
            return False


class BudgetForEver(Rebuilt):
    """The bypass budget is never given back: one blocked head closes the gate for all to come."""

    class gate_type(Gate):  # noqa: N801
        def block(self, head: Job | None) -> None:
            if head is not None:
                super().block(head)

        def rule_for(
            self, job: Job, reserve_tokens: int, head_reserve_tokens: int, now: float
        ) -> Rule | None:
            rule = super().rule_for(job, reserve_tokens, head_reserve_tokens, now)
            return None if self.closed(now) else rule


class LateBackfill(Controller):
    """Looks for one that may pass a blocked head only when something else happens."""

    def step(self, now: float, event: Event) -> list[Action]:
        self._just_arrived = isinstance(event, Arrival)
        return super().step(now, event)

    def _dispatch(self, now: float, line: Line, actions: list[Action]) -> None:
        if not (self._just_arrived and line.gate.head):
            super()._dispatch(now, line, actions)


class NewestFirst(Rebuilt):
    """The newest is served first."""

    class line_type(Line):  # noqa: N801
        def push(self, job: Job, *, front: bool = False) -> None:
            super().push(job, front=True)


class NoShortRoom(Controller):
    """A giant may leave shorts no room at all."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, min_short_room_tokens=0))


class NoExpressShare(Controller):
    """Longs may fill the pool to the brim."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, express_share=0.0))


# --- what the engine counts ---------------------------------------------------------------------


class EngineQueue(Rebuilt):
    """Whatever fits by tokens is sent; the engine may queue it, in its own order."""

    class pool_type(Pool):  # noqa: N801
        def _fits_engine(self, job: Job, prompt_tokens: int, lent: int) -> bool:
            return True

        def _fits_slots(self, job: Job) -> bool:
            return True


class NoSlotsForShorts(Controller):
    """Longs may take every running slot."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(replace(limits, short_slot_share=-1.0))


class OneSlotEach(Rebuilt):
    """A request is one request, whatever its n."""

    class pool_type(Pool):  # noqa: N801
        def _fits_slots(self, job: Job) -> bool:
            slots = self.facts.max_running_requests
            return slots is None or len(self.jobs) < slots
