"""A plan as a picture: times to the first token above, the pool's use below, one column a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxy.plan.figures import Grouping, asked
from proxy.plan.runs import Plan, Side
from proxy.simulator.records import Outcome
from proxy.simulator.report import COLOURS, FLOOR_SECONDS, MARKERS


def picture(plan: Plan, grouping: Grouping, path: Path, *, title: str) -> bool:
    """Draws all runs into `path`; False when matplotlib is not installed. Raises OSError and ValueError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(1.5 + 5.5 * len(plan.sides), 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        2, len(plan.sides), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1.3)
    )
    groups = _groups(plan.sides, grouping)
    for column, side in enumerate(plan.sides):
        _times(axes[0][column], side, grouping, groups)
        _pool(axes[1][column], side, plan.engine.pool_tokens)
    axes[0][0].set_ylabel("time to first token (s, logarithmic)")
    axes[1][0].set_ylabel("tokens")
    figure.suptitle(title, fontsize=13)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True


def _groups(sides: Sequence[Side], grouping: Grouping) -> list[str]:
    named = (figures.group for side in sides for figures in grouping.figures(side.run))
    return list(dict.fromkeys(named))


def _times(axes: Any, side: Side, grouping: Grouping, groups: Sequence[str]) -> None:
    requests = asked(side.run.records)
    figures = {found.group: found for found in grouping.figures(side.run)}
    for number, group in enumerate(groups):
        mine = [request for request in requests if grouping.group(request) == group]
        points = [
            (request.attempts[0].asked_at, max(request.ttft_seconds, FLOOR_SECONDS))
            for request in mine
            if request.ttft_seconds is not None
        ]
        refused = [r.attempts[-1].sent_at for r in mine if r.attempts[-1].outcome is Outcome.REFUSED]
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        if points:
            across, up = zip(*points, strict=True)
            label = f"{group}: {figures[group].goodput:.0%} in time"
            size = 14 + 40 * number
            axes.scatter(across, up, s=size, alpha=0.8, label=label, zorder=2 + number, **style)
        if refused:
            label = f"{group}: {len(refused)} refused"
            top = [0.985] * len(refused)
            axes.scatter(
                refused,
                top,
                s=30,
                color=style["color"],
                marker="x",
                label=label,
                transform=axes.get_xaxis_transform(),
            )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(f"{side.name} (all done after {side.run.wall_seconds:.0f} s)")
    axes.grid(visible=True, which="major", alpha=0.35)
    if requests:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2, fontsize=9, frameon=False)


def _pool(axes: Any, side: Side, pool_tokens: int) -> None:
    at = [sample.at for sample in side.run.samples]
    used = [sample.used_tokens for sample in side.run.samples]
    axes.fill_between(at, used, color=COLOURS[0], alpha=0.35, linewidth=0, label="used")
    if side.seen is not None:
        committed = [sample.extra["committed_tokens"] for sample in side.run.samples]
        axes.plot(at, committed, color=COLOURS[1], linewidth=1.2, label="committed")
    axes.axhline(pool_tokens, color="black", linewidth=1, linestyle="--", label="pool")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}K")
    axes.set_ylim(0, pool_tokens * 1.4)
    axes.set_xlabel("seconds")
    axes.grid(visible=True, which="major", alpha=0.35)
    axes.legend(loc="upper right", fontsize=8, ncols=3)
