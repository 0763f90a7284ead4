"""A picture of each way to play a load: the time to the first token of every request."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from proxy.simulator.report import COLOURS, FLOOR_SECONDS, MARKERS
from tests.load.figures import Run
from tests.load.scenario import Runs
from tests.load.verdicts import ttft

PANEL_INCHES = (4.5, 5.5)


def draw(runs: Runs, path: Path, *, title: str) -> None:
    """One panel a way, all with the same axes."""
    figure = Figure(figsize=(max(2, len(runs)) * PANEL_INCHES[0], PANEL_INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
    kinds = _kinds(runs)
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        _scatter(axes, name, run, kinds)
    panels[0].set_ylabel("time to first token (s, logarithmic)")
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=110)


def _kinds(runs: Runs) -> Sequence[str]:
    """The smallest prompts first."""
    largest: dict[str, int] = {}
    for run in runs.values():
        for outcome in run.outcomes:
            largest[outcome.kind] = max(largest.get(outcome.kind, 0), outcome.want_prompt_tokens)
    return sorted(largest, key=lambda kind: (largest[kind], kind))


def _scatter(axes: Any, name: str, run: Run, kinds: Sequence[str]) -> None:
    for number, kind in enumerate(kinds):
        points = [
            (outcome.started_at, max(outcome.ttft_seconds, FLOOR_SECONDS)) for outcome in run.served(kind)
        ]
        if points:
            across, up = zip(*points, strict=True)
            p50, p99 = (ttft(run, kind, share) for share in (0.5, 0.99))
            axes.scatter(
                across,
                up,
                s=14 + 30 * number,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                alpha=0.8,
                label=f"{kind}: p50 {p50:.2f}, p99 {p99:.2f}",
                zorder=2 + number,
            )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{name} (all done after {run.duration_seconds:.0f} s)", fontsize=10)
    axes.set_xlabel("sent at (s)")
    axes.grid(visible=True, which="major", alpha=0.35)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=8, frameon=False)
