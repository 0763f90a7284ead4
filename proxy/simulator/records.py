"""What a replay or a load measured: one record a request, and their summary per kind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean


class Outcome(StrEnum):
    """How it ended for the client."""

    DONE = "done"
    REFUSED = "refused"
    LEFT = "left"  # the client did not wait
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(slots=True)
class Record:
    """One request, in seconds since the start of the run."""

    rid: str
    kind: str
    client: str
    sent_at: float
    prompt_tokens: int
    tenant: str = "default"
    attempt: int = 0
    asked_at: float = 0.0  # when its first attempt was sent
    dispatched_at: float | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome = Outcome.UNFINISHED
    reason: str = ""
    status: int = 200
    retry_after_seconds: float | None = None
    predicted_wait_seconds: float | None = None
    lane: str = ""
    rule: str = ""
    completion_tokens: int = 0
    cached_tokens: int | None = None
    retractions: int = 0
    slices: int = 0

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first token."""
        return None if self.first_token_at is None else self.first_token_at - self.sent_at

    @property
    def wait_seconds(self) -> float | None:
        """From sending to being handed to the engine."""
        return None if self.dispatched_at is None else self.dispatched_at - self.sent_at


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of things at one moment."""

    at: float
    used_tokens: int
    running: int
    waiting: int  # in the engine
    held: int  # in front of it
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """Times to the first token of one kind of request."""

    kind: str
    count: int
    refused: int
    failed: int
    p50_seconds: float
    p99_seconds: float
    mean_seconds: float
    longest_seconds: float


def quantile(values: Iterable[float], q: float) -> float:
    """The smallest value that at least the share `q` does not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -int(-q * len(ordered) // 1) - 1))]


def summarize(records: Iterable[Record], kind: str) -> Summary:
    """Of all records of `kind`."""
    own = [record for record in records if record.kind == kind]
    times = [record.ttft_seconds for record in own if record.ttft_seconds is not None]
    return Summary(
        kind=kind,
        count=len(own),
        refused=sum(record.outcome is Outcome.REFUSED for record in own),
        failed=sum(record.outcome is Outcome.FAILED for record in own),
        p50_seconds=quantile(times, 0.5),
        p99_seconds=quantile(times, 0.99),
        mean_seconds=fmean(times) if times else float("nan"),
        longest_seconds=max(times, default=float("nan")),
    )


def kinds_of(records: Iterable[Record]) -> list[str]:
    """Every kind, the smallest prompts first."""
    largest: dict[str, int] = {}
    for record in records:
        largest[record.kind] = max(largest.get(record.kind, 0), record.prompt_tokens)
    return sorted(largest, key=lambda kind: (largest[kind], kind))


@dataclass(slots=True)
class Run:
    """All that was measured. `wall_seconds`: until the last request ended."""

    records: list[Record] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    retractions: int = 0
    slices: int = 0

    @property
    def wall_seconds(self) -> float:
        return max((record.ended_at for record in self.records if record.ended_at is not None), default=0.0)

    def cut_at(self, now: float) -> "Run":
        """This run ended early: whoever had no first token yet has waited at least until `now`."""
        records = [
            replace(record, first_token_at=now)
            if record.outcome is Outcome.UNFINISHED and record.first_token_at is None
            else record
            for record in self.records
        ]
        return Run(records, self.samples, self.retractions)

    def of(self, kind: str) -> Summary:
        """The summary of one kind."""
        return summarize(self.records, kind)

    def kinds(self) -> list[str]:
        return kinds_of(self.records)

    def count(self, outcome: Outcome) -> int:
        return sum(record.outcome is outcome for record in self.records)
