"""A plan as JSON."""

import math
from dataclasses import asdict
from typing import Any

from proxy.plan.figures import Figures, Grouping
from proxy.plan.questions import Answer
from proxy.plan.runs import Plan, Side
from proxy.simulator.watched import Cause


def document(plan: Plan, grouping: Grouping, notes: tuple[str, ...]) -> dict[str, Any]:
    """All that the text says, as plain values; what was not measured is null."""
    return {
        "traffic": {"name": plan.workload.name, "requests": plan.workload.requests, "notes": list(notes)},
        "server": {
            "pool_tokens": plan.engine.pool_tokens,
            "context_tokens": plan.engine.context_tokens,
            "chunk_tokens": plan.engine.chunk_tokens,
            "max_running_requests": plan.engine.max_running_requests,
            "policy": plan.engine.policy.value,
        },
        "grouped_by": grouping.by,
        "runs": [_side(side, grouping) for side in plan.sides],
    }


def _side(side: Side, grouping: Grouping) -> dict[str, Any]:
    run = side.run
    found: dict[str, Any] = {
        "name": side.name,
        "set": dict(side.policy.changes) if side.policy else {},
        "groups": [_figures(figures) for figures in grouping.figures(run)],
        "peak_used_tokens": max((sample.used_tokens for sample in run.samples), default=0),
        "retractions": run.retractions,
        "wall_seconds": run.wall_seconds,
    }
    seen = side.seen
    if seen is not None:
        found |= {
            "same_as_first": side.same,
            "peak_committed_tokens": seen.most["committed_tokens"],
            "refusals": dict(seen.refusals),
            "rules": dict(seen.rules),
            "held_requests": {cause.name.lower(): len(seen.held[cause]) for cause in Cause},
            "gate": {"closures": seen.gate_closures, "closed_seconds": seen.gate_closed_seconds},
            "slices": seen.sliced.total(),
            "sliced_requests": len(seen.sliced),
            "slice_misses": seen.slice_misses,
            "lowest_budget_tokens": seen.lowest_budget_tokens,
            "limits": [_answer(answer) for answer in side.answers],
        }
    return found


def _figures(figures: Figures) -> dict[str, Any]:
    values = asdict(figures) | {"goodput": figures.goodput}
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "variable": answer.variable,
        "value": answer.value or None,
        "acted": answer.first is not None,
        "first": asdict(answer.first) if answer.first else None,
        "seen": answer.seen,
    }
