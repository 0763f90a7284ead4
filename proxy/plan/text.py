"""A plan in plain text: figures per group, the server, what decided, which limits could have acted."""

import textwrap
from collections.abc import Sequence
from math import nan

from proxy.admission.backfill import Rule
from proxy.admission.types import Reason
from proxy.plan.figures import Figures, Grouping
from proxy.plan.questions import Answer
from proxy.plan.runs import Plan, Side
from proxy.simulator.records import Outcome
from proxy.simulator.report import aligned, seconds
from proxy.simulator.watched import Cause, Seen

NEVER = "never acted in this run"
WIDTH = 110  # of lines that can be broken
_RULES = {
    Rule.ENDS_BEFORE: "ends before the blocked long can start",
    Rule.BESIDE: "fits beside it",
    Rule.EXPRESS: "inside the express share",
    Rule.BYPASS: "by the bypass budget",
    Rule.GIANT_ROOM: "in the room a giant leaves",
}
# The reasons a replay knows; others are told where they occur.
_REASONS = (Reason.WOULD_MISS_DEADLINE, Reason.DEADLINE, Reason.QUEUE_FULL, Reason.CONTEXT_LENGTH_EXCEEDED)


def report(plan: Plan, grouping: Grouping) -> str:
    """The whole report, without the heading."""
    parts = [_figures(plan.sides, grouping), _server(plan)]
    for side in plan.sides:
        if side.same:
            parts.append(f"{side.name}: every decision is the same as under proxy in this run.")
        elif side.seen is not None:
            parts.append(_decisions(side, side.seen))
            if side.answers:
                parts.append(_limits(side))
    return "\n\n".join(parts) + "\n"


def _figures(sides: Sequence[Side], grouping: Grouping) -> str:
    head = ("", "", "offered", "refusals", "wait p50", "p99", "TTFT p50", "p99", "answered in time")
    rows: list[tuple[str, ...]] = [head]
    by_side = {side.name: {f.group: f for f in grouping.figures(side.run)} for side in sides}
    groups = dict.fromkeys(group for figures in by_side.values() for group in figures)
    lost = ""
    for group in groups:
        label = group
        for side in sides:
            figures = by_side[side.name].get(group)
            if figures is not None:
                rows.append((label, side.name, *_cells(figures, held=side.seen is not None)))
                label = ""
                lost += _lost(side.name, figures)
    title = f"By {grouping.by}: waits until sent and times to the first token in seconds"
    return f"{title}\n\n" + "\n".join(aligned(rows)) + lost


def _cells(figures: Figures, *, held: bool) -> tuple[str, ...]:
    waits = (figures.wait_p50_seconds, figures.wait_p99_seconds) if held else (nan, nan)
    target = "" if figures.target_seconds is None else f" within {figures.target_seconds:g} s"
    return (
        str(figures.offered),
        str(figures.refusals),
        *map(seconds, waits),
        seconds(figures.ttft_p50_seconds),
        seconds(figures.ttft_p99_seconds),
        f"{figures.goodput:.1%}{target}",
    )


def _lost(side: str, figures: Figures) -> str:
    lost = [(figures.failed, "failed"), (figures.unfinished, "unfinished when the replay ended")]
    return "".join(f"\n{side}, {figures.group}: {count} {what}" for count, what in lost if count)


def _server(plan: Plan) -> str:
    head = (
        "",
        "peak use of the pool",
        "most committed",
        "retractions",
        "done per second",
        "all done after",
    )
    rows: list[tuple[str, ...]] = [head]
    for side in plan.sides:
        used = max((sample.used_tokens for sample in side.run.samples), default=0)
        committed = max(
            (sample.extra.get("committed_tokens", 0.0) for sample in side.run.samples), default=0.0
        )
        done = side.run.count(Outcome.DONE) / side.run.wall_seconds if side.run.wall_seconds else 0.0
        rows.append(
            (
                side.name,
                f"{used / plan.engine.pool_tokens:.0%}",
                f"{committed / plan.engine.pool_tokens:.0%}" if side.seen else "-",
                str(side.run.retractions),
                f"{done:.2f}",
                f"{side.run.wall_seconds:.1f} s",
            )
        )
    return "The server\n\n" + "\n".join(aligned(rows, left=1))


def _decisions(side: Side, seen: Seen) -> str:
    passed = {words: seen.rules[rule] for rule, words in _RULES.items()}
    held = {cause.value: len(seen.held[cause]) for cause in Cause}
    refused = {reason.value: seen.refusals[reason.value] for reason in _REASONS} | seen.refusals
    gate = f"times closed: {seen.gate_closures}, {seen.gate_closed_seconds:.1f} s in all"
    slices = f"{len(seen.sliced)} prompts in {seen.sliced.total()} slices, {seen.slice_misses} missed"
    rows = (
        ("sent with nobody ahead", [str(seen.rules[Rule.FIT])]),
        ("sent past a blocked long", _counted(passed)),
        ("held, when it was next, by", _counted(held)),
        ("refused", _counted(refused)),
        ("gate", [gate if seen.gate_closures else NEVER]),
        ("sliced prefill", [slices if seen.sliced else NEVER]),
        ("budget", [f"never below {seen.lowest_budget_tokens:,} tokens (retractions lower it)"]),
    )
    lines = [f"What {side.name} decided, in requests", ""]
    for title, texts in rows:
        for number, text in enumerate(texts):
            lines += _hanging("" if number else title, text, indent=28)
    return "\n".join(lines)


def _counted(counts: dict[str, int]) -> list[str]:
    """Those that happened with their counts, then those that did not."""
    acted = [f"{words}: {count}" for words, count in counts.items() if count]
    idle = [words for words, count in counts.items() if not count]
    never = [f"{NEVER}: {', '.join(idle)}"] if idle else []
    return [", ".join(acted)] * bool(acted) + never


def _limits(side: Side) -> str:
    limits = [answer for answer in side.answers if answer.value]
    lines = [
        f"Could this limit of {side.name} have acted at all? (each lifted, and everything decided again)",
        "",
    ]
    for answer in limits:
        lines += _hanging(f"{answer.variable}={answer.value}", acted(answer), indent=41)
        lines += _hanging("", answer.seen, indent=41)
    unset = ", ".join(answer.variable for answer in side.answers if not answer.value)
    return "\n".join([*lines, *(_hanging("not set", unset, indent=41) if unset else ())])


def acted(answer: Answer) -> str:
    """In words: never, or what it did first."""
    first = answer.first
    if first is None:
        return NEVER
    kind = f"{answer.kind} " if answer.kind else ""
    return f"acted, first at {first.at:.1f} s: {kind}{first.rid} was {first.what}"


def _hanging(title: str, text: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=title.ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
    )
