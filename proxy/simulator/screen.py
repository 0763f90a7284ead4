"""The live view of a demonstration: a few lines redrawn in place, or one plain line now and then."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10
from typing import TextIO

from proxy.simulator.records import Record, Run, quantile
from proxy.simulator.report import seconds

RECENT_SECONDS = 5.0
PLAIN_EVERY_SECONDS = 5.0
BAR_CELLS = 24
LONGEST_BAR_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class View:
    """One side at one moment. Waits count from sending."""

    name: str
    recent_seconds: float  # median over the last few, the waiting ones as long as they have waited
    p50_seconds: float
    p99_seconds: float
    waiting: int  # requests without a first token
    contexts: int  # long prompts being answered
    done: int
    total: int
    finished: bool
    pool_share: float  # of the engine's pool in use
    engine_waiting: int


def view_of(
    name: str, run: Run, now: float, *, short: str, total: int, pool_share: float, engine_waiting: int
) -> View:
    """What `run` looks like `now`. `short` is the kind whose waits are shown."""
    begun = [r for r in run.records if r.first_token_at is not None]
    waiting = [r for r in run.records if r.first_token_at is None and r.ended_at is None]
    shorts = [r for r in run.records if r.kind == short]
    times = [r.ttft_seconds for r in shorts if r.ttft_seconds is not None]
    done = sum(r.ended_at is not None for r in run.records)
    return View(
        name=name,
        recent_seconds=quantile(_recent(shorts, now), 0.5),
        p50_seconds=quantile(times, 0.5),
        p99_seconds=quantile(times, 0.99),
        waiting=len(waiting),
        contexts=sum(r.kind != short and r.ended_at is None for r in begun),
        done=done,
        total=total,
        finished=done >= total,
        pool_share=pool_share,
        engine_waiting=engine_waiting,
    )


class Screen:
    """Draws views on `out`: in place on a terminal, else a line every few seconds."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._live = out.isatty()
        self._drawn_lines = 0
        self._said_at = -PLAIN_EVERY_SECONDS

    def show(self, now: float, views: Sequence[View]) -> None:
        """Draw the present."""
        if not self._live:
            if self._clock() - self._said_at >= PLAIN_EVERY_SECONDS:
                self._said_at = self._clock()
                self._write(_plain(now, views) + "\n")
            return
        width = shutil.get_terminal_size().columns
        lines = [line[: width - 1] for line in _lines(now, views)]
        back = f"\x1b[{self._drawn_lines}A" if self._drawn_lines else ""
        self._write(back + "".join(f"\x1b[2K{line}\n" for line in lines))
        self._drawn_lines = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _recent(shorts: Sequence[Record], now: float) -> list[float]:
    values = []
    for record in shorts:
        if record.first_token_at is not None:
            if now - record.first_token_at <= RECENT_SECONDS:
                values.append(record.first_token_at - record.sent_at)
        elif record.ended_at is None:
            values.append(now - record.sent_at)
    return values


def _lines(now: float, views: Sequence[View]) -> list[str]:
    lines = [f"{now:5.0f} s"]
    for view in views:
        state = "all done" if view.finished else f"{view.done} of {view.total} done"
        lines += [
            "",
            f"  {view.name}: {state}",
            f"    a short chat waits now   {_bar(view.recent_seconds)} {seconds(view.recent_seconds)} s",
            f"    so far p50, p99          {seconds(view.p50_seconds)} s, {seconds(view.p99_seconds)} s",
            f"    waiting for a token      {view.waiting}, queued in the engine {view.engine_waiting}",
            f"    long contexts answering  {view.contexts}, pool {view.pool_share:.0%} used",
        ]
    return lines


def _plain(now: float, views: Sequence[View]) -> str:
    sides = [
        f"{view.name}: short {seconds(view.recent_seconds)} s, {view.waiting} waiting, "
        f"{view.done}/{view.total} done"
        for view in views
    ]
    return f"{now:4.0f} s  " + "  |  ".join(sides)


def _bar(value: float) -> str:
    """Logarithmic: from 10 ms to a minute."""
    if not value > 0:
        return " " * BAR_CELLS
    share = (log10(value) + 2) / (log10(LONGEST_BAR_SECONDS) + 2)
    return ("#" * round(BAR_CELLS * min(1.0, max(0.0, share)))).ljust(BAR_CELLS)
