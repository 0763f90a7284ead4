"""The controller in a replay: told what happens, woken when it asked to be, its actions handed on."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from proxy.admission.types import Action, Event, Tick
from proxy.simulator.crowd import Agenda, Sent

# A controller that wants to be woken at once is woken this much later, as a real timer would.
SHORTEST_SLEEP_SECONDS = 0.001


class Controller(Protocol):
    """What decides. See `proxy.admission.types` for what goes in and out."""

    def step(self, now: float, event: Event) -> Sequence[Action]:
        """Take in what happened at `now`; returns what is to be done at once."""
        ...


@runtime_checkable
class Waking(Protocol):
    """A controller that also says when it wants a `Tick`."""

    def next_wakeup(self, now: float) -> float | None:
        """When, though nothing happens; None when there is nothing to wait for."""
        ...


class Desk:
    """Where requests are decided on; without a controller nothing is."""

    def __init__(self, controller: Controller | None, agenda: Agenda, act: Callable[[Action], None]) -> None:
        self._controller = controller
        self._agenda = agenda
        self._act = act
        self._wakes_at: float | None = None

    def decides_on(self, sent: Sent) -> bool:
        """Whether the request passes here."""
        return self._controller is not None and not sent.client.direct

    def tell(self, event: Event) -> None:
        """Something happened now: do what the controller wants done about it."""
        if self._controller is None:
            return
        for action in self._controller.step(self._agenda.now, event):
            self._act(action)
        if isinstance(self._controller, Waking):
            self._set_alarm(self._controller.next_wakeup(self._agenda.now))

    def _set_alarm(self, at: float | None) -> None:
        if at is None or (self._wakes_at is not None and self._wakes_at <= at):
            return
        self._wakes_at = max(at, self._agenda.now + SHORTEST_SLEEP_SECONDS)
        self._agenda.at(self._wakes_at, partial(self._alarm, self._wakes_at))

    def _alarm(self, at: float) -> None:
        if self._wakes_at == at:
            self._wakes_at = None
            self.tell(Tick())
