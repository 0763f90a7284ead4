"""Numbers out of runs, and the table that holds them against what is required."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from tests.load.decisions import Decision
from tests.load.outcome import Outcome
from tests.load.sampler import Sample


@dataclass(frozen=True, slots=True)
class Run:
    """One load played once, directly or through the proxy. `ledger` is the proxy's, at the end."""

    outcomes: Sequence[Outcome]
    samples: Sequence[Sample]
    missed_samples: int
    retractions: int
    ledger: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    decisions: Sequence[Decision] = ()  # where its log was kept

    def write(self, path: Path) -> None:
        """Keeps all of it as JSON."""
        path.write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` kept. Raises OSError, or ValueError for something else."""
        kept = json.loads(path.read_text())
        kept["outcomes"] = [Outcome(**outcome) for outcome in kept["outcomes"]]
        kept["samples"] = [Sample(**sample) for sample in kept["samples"]]
        kept["decisions"] = [Decision(**decision) for decision in kept.get("decisions", ())]
        return cls(**kept)

    def summary(self) -> str:
        """One line a kind of request, for a run that is not compared."""
        lines = []
        for kind in sorted({outcome.kind for outcome in self.outcomes}):
            if not self.served(kind):
                lines.append(f"{kind}: none served")
                continue
            times = self.ttfts(kind)
            p50, p99 = quantile(times, 0.5), quantile(times, 0.99)
            lines.append(
                f"{kind}: {len(times)} served, TTFT mean {statistics.fmean(times):.2f} "
                f"p50 {p50:.2f} p99 {p99:.2f} s"
            )
        queue = self.share_of_samples(waiting_at_most=1)
        cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.cpu_seconds.items())
        return (
            f"{'; '.join(lines)}; all done after {self.duration_seconds:.1f} s; {len(self.failures)} failed; "
            f"{self.retractions} retracted; engine's queue <= 1 in {queue:.1%}; CPU seconds: {cpu}"
        )

    def of(self, kind: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.kind == kind]

    def served(self, kind: str) -> list[Outcome]:
        return [outcome for outcome in self.of(kind) if outcome.served]

    def ttfts(self, kind: str) -> list[float]:
        """Of those that were served, sorted. Raises ValueError when none was."""
        found = sorted(outcome.ttft_seconds for outcome in self.served(kind))
        if not found:
            raise ValueError(f"no {kind} request was served")
        return found

    @property
    def failures(self) -> list[Outcome]:
        """Neither served as asked, nor refused in the agreed form, nor cut off by the end of the load."""
        return [
            outcome for outcome in self.outcomes if not (outcome.refused or outcome.cut) and _problem(outcome)
        ]

    @property
    def duration_seconds(self) -> float:
        """Until the last answer ended."""
        return max(outcome.ended_at or 0.0 for outcome in self.outcomes)

    @property
    def work(self) -> tuple[int, int]:
        """Prompt and completion tokens that the server reported."""
        served = [outcome for outcome in self.outcomes if outcome.served]
        return (
            sum(outcome.prompt_tokens or 0 for outcome in served),
            sum(outcome.completion_tokens or 0 for outcome in served),
        )

    def share_of_samples(self, *, waiting_at_most: int) -> float:
        """How much of the time the engine's own queue was this short."""
        if not self.samples:
            raise ValueError("the engine was never sampled")
        return statistics.fmean(sample.waiting <= waiting_at_most for sample in self.samples)


def _problem(outcome: Outcome) -> str | None:
    """What is wrong with an answer that is no refusal; None where nothing is."""
    if outcome.error is not None or outcome.status != 200:
        return outcome.error or f"status {outcome.status}"
    if outcome.prompt_tokens is not None and outcome.prompt_tokens != outcome.want_prompt_tokens:
        return f"prompt {outcome.prompt_tokens} tokens, not {outcome.want_prompt_tokens}"
    if outcome.completion_tokens is not None and outcome.completion_tokens < outcome.want_output_tokens:
        return f"output {outcome.completion_tokens} tokens, not {outcome.want_output_tokens}"
    return None


def problems(outcomes: Iterable[Outcome]) -> list[str]:
    """The distinct faults of failed requests, for a message."""
    return sorted({f"{outcome.kind}: {_problem(outcome)}" for outcome in outcomes})


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the sorted values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `ok` None means that it only informs; `value` is the ratio, where there is one,
    and `limit` what it must not exceed.
    """

    figure: str
    direct: str
    proxied: str
    ratio: str
    required: str
    ok: bool | None
    value: float | None = None
    limit: float | None = None


def compare(figure: str, direct: float, proxied: float, at_most: float | None, unit: str = "s") -> Row:
    """proxied / direct must not exceed `at_most` (None: shown, not required)."""
    ratio = proxied / direct if direct else math.inf
    below_one = at_most is not None and at_most < 1
    return Row(
        figure,
        _number(direct, unit),
        _number(proxied, unit),
        f"1:{1 / ratio:.1f}" if 0 < ratio < 1 and below_one else f"{ratio:.2f}",
        "" if at_most is None else f"<= 1:{1 / at_most:g}" if below_one else f"<= {at_most:g}",
        None if at_most is None else ratio <= at_most,
        ratio,
        at_most,
    )


def require(figure: str, direct: str, proxied: str, required: str, ok: bool) -> Row:
    """A line whose verdict is not a ratio."""
    return Row(figure, direct, proxied, "", required, ok)


def within(figure: str, proxied: float, at_most: float, unit: str = "s") -> Row:
    """A figure of the proxied run alone, with a limit of its own."""
    shown = f"<= {_number(at_most, unit)}"
    return require(figure, "", _number(proxied, unit), shown, proxied <= at_most)


def inform(figure: str, direct: str, proxied: str) -> Row:
    return Row(figure, direct, proxied, "", "", None)


def _number(value: float, unit: str) -> str:
    digits = 0 if unit == "tokens" else 3 if value < 1 else 2 if value < 10 else 1
    return f"{value:,.{digits}f} {unit}"


def middle(same: Sequence[Row]) -> Row:
    """Of one figure's lines from several runs: that of the median ratio, or the worst where it has none."""
    if all(row.value is not None for row in same):
        return sorted(same, key=lambda row: row.value or 0.0)[len(same) // 2]
    return min(same, key=lambda row: row.ok is not False)


def all_hold(rows: Iterable[Row]) -> bool:
    """Is nothing that is required missed?"""
    return all(row.ok is not False for row in rows)


def table(rows: Sequence[Row]) -> str:
    """Aligned columns, one line a row."""
    heads = ("figure", "direct", "proxied", "ratio", "required", "")
    verdicts = {True: "ok", False: "FAIL", None: ""}
    return aligned([heads, *((*_cells(row), verdicts[row.ok]) for row in rows)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """The first line heads the columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    ruled = [lines[0], tuple("-" * width for width in widths), *lines[1:]]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in ruled
    )


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    return row.figure, row.direct, row.proxied, row.ratio, row.required
