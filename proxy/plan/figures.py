"""What a run meant for those who asked: waits, times to the first token and goodput, by lane.

Goodput counts over what was *offered*: of all requests asked for, refused and unfinished ones
included, those answered to the end whose first token came within the lane's target.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from proxy.admission.types import Lane, Reason
from proxy.simulator.records import Outcome, Record, Run, kinds_of, quantile

Key = tuple[str, int]  # a client's name, and which of its requests
TARGET_SECONDS: Mapping[str, float] = {Lane.SHORT: 1.0, Lane.LONG: 30.0, Lane.GIANT: 60.0}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a client, with all its attempts."""

    key: Key
    attempts: tuple[Record, ...]

    @property
    def ttft_seconds(self) -> float | None:
        """From first asking to the first token, refusals and pauses between them included."""
        last = self.attempts[-1]
        return None if last.first_token_at is None else last.first_token_at - last.asked_at

    @property
    def done(self) -> bool:
        return self.attempts[-1].outcome is Outcome.DONE


@dataclass(frozen=True, slots=True)
class Figures:
    """One group of requests in one run. Quantiles are NaN where nothing was measured."""

    group: str
    target_seconds: float | None  # None: the group has several lanes, each with its own
    offered: int
    refusals: int  # answers that said no: retried requests may get several
    failed: int
    unfinished: int
    wait_p50_seconds: float
    wait_p99_seconds: float
    ttft_p50_seconds: float
    ttft_p99_seconds: float
    in_time: int

    @property
    def goodput(self) -> float:
        """Share of the offered that was answered in time."""
        return self.in_time / self.offered if self.offered else 0.0


def asked(records: Iterable[Record]) -> list[Asked]:
    """Attempts put together: a client's n-th request is the n-th time it asked for something new."""
    attempts: dict[Key, list[Record]] = {}
    turns: dict[str, int] = {}
    for record in records:
        if record.attempt == 0:
            turns[record.client] = turns.get(record.client, -1) + 1
        attempts.setdefault((record.client, turns[record.client]), []).append(record)
    return [Asked(key, tuple(tries)) for key, tries in attempts.items()]


def lanes_of(run: Run, short_prefill_tokens: int) -> dict[Key, str]:
    """The lane that the proxy gave each request; by its size for one it gave none."""
    return {request.key: _lane(request, short_prefill_tokens) for request in asked(run.records)}


def _lane(request: Asked, short_prefill_tokens: int) -> str:
    for record in request.attempts:
        if record.lane and record.reason != Reason.CONTEXT_LENGTH_EXCEEDED:
            return record.lane
    short = request.attempts[0].prompt_tokens <= short_prefill_tokens
    return (Lane.SHORT if short else Lane.LONG).value


@dataclass(frozen=True, slots=True)
class Grouping:
    """How a run is divided. `lanes` are those of one run, so that all runs compare the same requests."""

    by: str  # "lane", "kind" or "tenant"
    lanes: Mapping[Key, str]
    targets: Mapping[str, float]

    def figures(self, run: Run) -> list[Figures]:
        """One for each group that something was offered in."""
        requests = asked(run.records)
        groups: dict[str, list[Asked]] = {name: [] for name in self._order(run.records)}
        for request in requests:
            groups[self.group(request)].append(request)
        return [self._figures(name, members) for name, members in groups.items() if members]

    def lane(self, request: Asked) -> str:
        """The lane whose target it has."""
        first = request.attempts[0]
        return self.lanes.get(request.key) or first.lane or Lane.SHORT.value

    def _order(self, records: Sequence[Record]) -> list[str]:
        if self.by == "lane":
            return [lane.value for lane in Lane]
        if self.by == "kind":
            return kinds_of(records)
        return sorted({record.tenant for record in records})

    def group(self, request: Asked) -> str:
        """Which one a request belongs to."""
        of: Mapping[str, Callable[[Asked], str]] = {
            "lane": self.lane,
            "kind": lambda request: request.attempts[0].kind,
            "tenant": lambda request: request.attempts[0].tenant,
        }
        return of[self.by](request)

    def _figures(self, name: str, members: Sequence[Asked]) -> Figures:
        attempts = [record for request in members for record in request.attempts]
        waits = [record.wait_seconds for record in attempts if record.wait_seconds is not None]
        times = [request.ttft_seconds for request in members if request.ttft_seconds is not None]
        targets = {self.targets[self.lane(request)] for request in members}
        return Figures(
            name,
            targets.pop() if len(targets) == 1 else None,
            offered=len(members),
            refusals=sum(record.outcome is Outcome.REFUSED for record in attempts),
            failed=sum(record.outcome is Outcome.FAILED for record in attempts),
            unfinished=sum(record.outcome is Outcome.UNFINISHED for record in attempts),
            wait_p50_seconds=quantile(waits, 0.5),
            wait_p99_seconds=quantile(waits, 0.99),
            ttft_p50_seconds=quantile(times, 0.5),
            ttft_p99_seconds=quantile(times, 0.99),
            in_time=sum(self._in_time(request) for request in members),
        )

    def _in_time(self, request: Asked) -> bool:
        seconds = request.ttft_seconds
        return request.done and seconds is not None and seconds <= self.targets[self.lane(request)]


def parse_targets(text: str) -> dict[str, float]:
    """`short=1,long=30` on top of the usual targets. Raises ValueError."""
    targets = {str(lane): seconds for lane, seconds in TARGET_SECONDS.items()}
    for part in filter(None, text.split(",")):
        lane, _, value = part.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if lane not in targets or not seconds > 0:
            raise ValueError(f"target {part!r}: expected LANE=SECONDS, of {', '.join(targets)}")
        targets[lane] = seconds
    return targets
