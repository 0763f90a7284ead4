"""The same load on the engine's own queue orders, beside first come, first served and the proxy."""

from collections.abc import Sequence
from dataclasses import replace

from tests.load.figures import aligned
from tests.load.scenario import Runs, Scenario, Way
from tests.load.verdicts import mean_ttft, ttft
from tests.load.workload import Ask, Workload

SHORT_TOKENS = 8_192
HIGH, LOW = 1, 0


def labelled(workload: Workload) -> Workload:
    """Short prompts say that they come first: what a client would have to know and to tell."""

    def label(ask: Ask) -> Ask:
        return replace(ask, priority=HIGH if ask.prompt_tokens <= SHORT_TOKENS else LOW)

    return workload.map(label)


RIVALS = (
    Way("shortest-prefill-first", policy="shortest-prefill-first"),
    Way("lpm", policy="lpm"),
    Way("priority", flags=("--enable-priority-scheduling",), change=labelled),
)


def with_rivals(scenario: Scenario) -> Scenario:
    """The scenario, played against each rival too, but for those it has already."""
    known = {way.name for way in scenario.ways}
    return replace(scenario, ways=(*scenario.ways, *(way for way in RIVALS if way.name not in known)))


def side_by_side(runs: Runs) -> str:
    """A column a way: times to the first token by kind, in seconds, and until all was done."""
    columns = list(runs.values())
    lines: list[Sequence[str]] = [("TTFT in seconds", *runs)]
    for kind in sorted({outcome.kind for run in columns for outcome in run.outcomes}):
        for share in (0.5, 0.99):
            times = (ttft(run, kind, share) if run.served(kind) else None for run in columns)
            lines.append((f"{kind}, p{100 * share:g}", *map(_shown, times)))
        means = (mean_ttft(run, kind) if run.served(kind) else None for run in columns)
        lines.append((f"{kind}, mean", *map(_shown, means)))
    lines.append(("all done after, s", *(f"{run.duration_seconds:.1f}" for run in columns)))
    lines.append(("retractions", *(str(run.retractions) for run in columns)))
    lines.append(
        ("not served", *(str(sum(not outcome.served for outcome in run.outcomes)) for run in columns))
    )
    return aligned(lines)


def _shown(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.{3 if seconds < 1 else 2 if seconds < 10 else 1}f}"
