"""Wrong policies: each is the controller with one thing done as it must not be done.

They are the reason to trust the scenarios: each scenario names those that it has to catch. Most
are what one would write first, or what other proxies do.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import ClassVar

from proxy.admission.backfill import Gate, Rule
from proxy.admission.controller import Controller
from proxy.admission.job import Job
from proxy.admission.limits import Limits
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.sensor import Sensor
from proxy.admission.types import Action, PoolUp

Make = Callable[[Limits], Controller]


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
