"""A line now and then while a long plan runs."""

import time
from collections.abc import Callable
from typing import TextIO

FIRST_SECONDS = 2.0  # shorter waits need no words
EVERY_SECONDS = 2.0
_STEPS = 256  # between two looks at the clock


class Progress:
    """Tells `out` what is being replayed, when that takes long."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._due = clock() + FIRST_SECONDS
        self._steps = 0

    def step(self, what: str, now: float) -> None:
        """Another step of `what`, `now` seconds into the traffic."""
        self._steps += 1
        if self._steps % _STEPS and now:
            return
        if self._clock() >= self._due:
            self._due = self._clock() + EVERY_SECONDS
            self._out.write(f"plan: replaying {what}, {now:.0f} s of traffic so far\n")
            self._out.flush()
