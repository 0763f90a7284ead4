"""Where the processor time of an event loop's thread goes: functions are wrapped, each belongs to a layer.

At any moment one layer has the clock: that of the innermost wrapped function. A coroutine has it only
while one of its steps runs. The clock is the thread's CPU time, so neither waiting nor being interrupted
counts. What the wrappers cost themselves is measured first and taken off.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from time import thread_time_ns
from types import TracebackType
from typing import Any, cast

OUTSIDE = ""  # no wrapped function runs
CALIBRATION_CALLS = 5000
CALIBRATIONS = 7


@dataclass(slots=True)
class Clock:
    """Nanoseconds by layer, how often each was entered, and how often something was entered from it."""

    spent_ns: dict[str, int] = field(default_factory=dict)
    entered: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _layer: str = OUTSIDE
    _since_ns: int = 0

    def __post_init__(self) -> None:
        self._since_ns = thread_time_ns()

    def enter(self, layer: str) -> None:
        outer = self._layer
        self._count()
        self.left[outer] = self.left.get(outer, 0) + 1
        self.entered[layer] = self.entered.get(layer, 0) + 1
        self._stack.append(outer)
        self._layer = layer

    def leave(self) -> None:
        self._count()
        self._layer = self._stack.pop()

    def _count(self) -> None:
        now = thread_time_ns()
        self.spent_ns[self._layer] = self.spent_ns.get(self._layer, 0) + now - self._since_ns
        self._since_ns = now

    def take(self) -> "Clock":
        """What was found since the last call."""
        self._count()
        found = Clock(self.spent_ns, self.entered, self.left)
        self.spent_ns, self.entered, self.left = {}, {}, {}
        return found

    def own_ns(self, costs: "Costs") -> dict[str, float]:
        """By layer, without what the wrappers cost."""
        return {
            layer: spent
            - self.entered.get(layer, 0) * costs.inside_ns
            - self.left.get(layer, 0) * costs.outside_ns
            for layer, spent in self.spent_ns.items()
        }


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one wrapped call: what the entered layer's clock shows of it, and that of the layer it came from."""

    inside_ns: float
    outside_ns: float


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed, and not what lies between them."""

    __slots__ = ("_clock", "_inner", "_layer")

    def __init__(self, inner: Coroutine[Any, Any, Any], layer: str, clock: Clock) -> None:
        self._inner = inner
        self._layer = layer
        self._clock = clock

    def send(self, value: Any) -> Any:
        self._clock.enter(self._layer)
        try:
            return self._inner.send(value)
        finally:
            self._clock.leave()

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        self._clock.enter(self._layer)
        try:
            return self._inner.throw(kind if value is None else value)
        finally:
            self._clock.leave()

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast("Generator[Any, Any, Any]", self)  # it has all that `await` asks of one

    def __iter__(self) -> "Steps":
        return self

    def __next__(self) -> Any:
        return self.send(None)


def timed(function: Callable[..., Any], layer: str, clock: Clock) -> Callable[..., Any]:
    """The same function, with `layer` on the clock while it runs."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        def stepped(*values: Any, **named: Any) -> Steps:
            return Steps(function(*values, **named), layer, clock)

        return stepped

    @functools.wraps(function)
    def called(*values: Any, **named: Any) -> Any:
        clock.enter(layer)
        try:
            return function(*values, **named)
        finally:
            clock.leave()

    return called


def install(layers: Mapping[str, tuple[str, ...]], clock: Clock) -> Callable[[], None]:
    """Wraps what `layers` names by where it is defined: `module:Class.method` or `module:function`.

    Returns what takes the wrappers off again. Raises AttributeError for a name that is not there any more.
    """
    undo: list[tuple[Any, str, Any]] = []
    for layer, targets in layers.items():
        for target in targets:
            module, _, path = target.partition(":")
            *owners, name = path.split(".")
            holder: Any = importlib.import_module(module)
            for owner in owners:
                holder = getattr(holder, owner)
            function = inspect.getattr_static(holder, name)
            wrapper = timed(function, layer, clock)
            for place in [holder] if owners else _modules_with(name, function):
                undo.append((place, name, function))
                setattr(place, name, wrapper)

    def uninstall() -> None:
        for place, name, function in reversed(undo):
            setattr(place, name, function)

    return uninstall


def _modules_with(name: str, function: Any) -> list[Any]:
    """Where it is defined, and wherever it was imported."""
    return [module for module in tuple(sys.modules.values()) if vars(module).get(name) is function]


def costs_of_a_span() -> Costs:
    """Measured on functions that do nothing."""

    def nothing() -> None:
        """Empty."""

    clock = Clock()
    inner = timed(nothing, "inner", clock)

    def repeat(function: Callable[[], None]) -> int:
        begun = thread_time_ns()
        for _ in range(CALIBRATION_CALLS):
            function()
        return thread_time_ns() - begun

    inside, outside = [], []
    for _ in range(CALIBRATIONS):
        bare_ns = repeat(nothing)
        clock.take()
        repeat(inner)
        spent = clock.take().spent_ns
        inside.append(spent["inner"])
        outside.append(spent[OUTSIDE] - bare_ns)
    return Costs(min(inside) / CALIBRATION_CALLS, min(outside) / CALIBRATION_CALLS)
