"""Two runs of one workload side by side: a table, and a picture of times to the first token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.simulator.records import Outcome, Run, Summary

# One colour a kind, in the order of their prompts: told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7")
MARKERS = "os*^D"
FLOOR_SECONDS = 0.01  # a logarithmic axis has no zero
_HEADER = ("", "", "p50", "p99", "mean", "requests", "refused", "failed", "p50 against direct")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs, and what it is called."""

    name: str
    run: Run


def seconds(value: float) -> str:
    """With the digits that matter."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def ratio(before: float, after: float) -> str:
    """How many times smaller `after` is, in words."""
    if math.isnan(before) or math.isnan(after) or min(before, after) <= 0:
        return "-"
    if after <= before:
        return f"{_digits(before / after)}x faster"
    return f"{_digits(after / before)}x slower"


def table(direct: Side, proxied: Side) -> str:
    """Times to the first token in seconds per kind of request, and what became of all of them."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for kind in direct.run.kinds():
        before, after = direct.run.of(kind), proxied.run.of(kind)
        rows.append((kind, direct.name, *_cells(before), ""))
        rows.append(("", proxied.name, *_cells(after), ratio(before.p50_seconds, after.p50_seconds)))
    lines = ["Time to first token, in seconds", "", *aligned(rows), ""]
    for side in (direct, proxied):
        run = side.run
        unfinished = run.count(Outcome.UNFINISHED)
        left_over = f", {unfinished} unfinished" if unfinished else ""
        done = run.count(Outcome.DONE)
        lines.append(f"{side.name}: {done} requests done in {run.wall_seconds:.1f} s{left_over}")
    return "\n".join(lines)


def picture(direct: Side, proxied: Side, path: Path, *, title: str) -> bool:
    """Draws both runs into `path`; False when matplotlib is not installed, and then nothing is written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    kinds = direct.run.kinds()
    for axes, side in ((left, direct), (right, proxied)):
        _scatter(axes, side, kinds)
    left.set_ylabel("time to first token (s, logarithmic)")
    figure.suptitle(title, fontsize=13)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True


def _scatter(axes: Any, side: Side, kinds: Sequence[str]) -> None:
    for number, kind in enumerate(kinds):
        points = [
            (record.sent_at, max(record.ttft_seconds, FLOOR_SECONDS))
            for record in side.run.records
            if record.kind == kind and record.ttft_seconds is not None
        ]
        size = 14 if number == 0 else 50 + 60 * number
        summary = side.run.of(kind)
        label = f"{kind}: p50 {seconds(summary.p50_seconds)} s, p99 {seconds(summary.p99_seconds)} s"
        if points:
            across, up = zip(*points, strict=True)
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
            axes.scatter(across, up, s=size, alpha=0.8, label=label, zorder=2 + number, **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{side.name} (all done after {side.run.wall_seconds:.0f} s)")
    axes.set_xlabel("sent at (s)")
    axes.grid(visible=True, which="major", alpha=0.35)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=9, frameon=False)


def _cells(summary: Summary) -> tuple[str, ...]:
    times = (summary.p50_seconds, summary.p99_seconds, summary.mean_seconds)
    counts = (summary.count, summary.refused, summary.failed)
    return (*map(seconds, times), *map(str, counts))


def aligned(rows: Sequence[Sequence[str]], *, left: int = 2) -> list[str]:
    """Lines of columns under each other, the first `left` of them flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}" if value >= 2 else f"{value:.2f}"
