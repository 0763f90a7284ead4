"""Counters and histograms of requests, and the registry behind `/metrics`.

The methods run for every request: label children are resolved once and kept.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from proxy.admission.types import Lane, Reason
from proxy.telemetry import catalogue
from proxy.telemetry.bounded import BoundedNames
from proxy.telemetry.catalogue import Spec
from proxy.telemetry.collector import StateCollector
from proxy.telemetry.snapshot import StateSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Outcome(StrEnum):
    """How a request ended, seen from the client."""

    COMPLETED = "completed"
    REFUSED = "refused"  # an answer of admission: 429, 503, or 400 for what can never fit
    INVALID = "invalid"  # the request itself was wrong: 400, 401, 404, 413, or the server said so
    DISCONNECTED = "disconnected"  # the client left first
    FAILED = "failed"  # the server failed before the first byte
    BROKEN = "broken"  # the server failed mid-stream


class Phase(StrEnum):
    """What a request was doing when its client left."""

    READING = "reading"
    QUEUED = "queued"
    SLICING = "slicing"
    PREFILLING = "prefilling"
    STREAMING = "streaming"


# A request that was turned away before it was sized has no lane.
NO_LANE = "none"
_LANES = (*(lane.value for lane in Lane), NO_LANE)


def package_version() -> str:
    """The installed version, or "unknown" when run from a bare checkout."""
    try:
        return version("sglang-admission-proxy")
    except PackageNotFoundError:
        return "unknown"


class Metrics:
    """All metrics of one proxy, on a registry of their own.

    `snapshot` is called at each scrape for the gauges. Times are seconds, sizes tokens.
    """

    def __init__(
        self, snapshot: Callable[[], StateSnapshot], *, mode: str = "enforce", max_queue_seconds: float = 60.0
    ) -> None:
        # They would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.registry.register(StateCollector(snapshot))
        ProcessCollector(registry=self.registry)
        self._info = self._gauge(catalogue.INFO)
        self._promise = self._gauge(catalogue.QUEUE_PROMISE)
        self.adopt(mode=mode, max_queue_seconds=max_queue_seconds)

        requests = self._counter(catalogue.REQUESTS)
        self._requests = {(lane, o): requests.labels(lane, o.value) for lane in _LANES for o in Outcome}
        self._waits = self._histograms(catalogue.QUEUE_WAIT, Lane)
        self._ttfts = self._histograms(catalogue.TTFT, Lane)
        self._prompt_tokens = self._counters(catalogue.PROMPT_TOKENS, Lane)
        self._completion_tokens = self._counters(catalogue.COMPLETION_TOKENS, Lane)
        self._refusals = self._counters(catalogue.REFUSALS, Reason)
        self._disconnects = self._counters(catalogue.DISCONNECTS, Phase)
        self._wait_errors = self._histograms(catalogue.WAIT_ERROR, ("early", "late"))
        self._reserve_errors = self._histograms(catalogue.RESERVE_ERROR, ("over", "under"))
        self._backfills = self._counter(catalogue.BACKFILLS)
        self._rules: dict[str, Counter] = {}
        self._tenant_requests = self._counter(catalogue.TENANT_REQUESTS)
        self._tenant_tokens = self._counter(catalogue.TENANT_TOKENS)
        self._tenants = BoundedNames(50)
        self._by_tenant: dict[tuple[str, Outcome], tuple[Counter, Counter]] = {}

        self._slices = self._counter(catalogue.SLICES)
        self._slice_misses = self._counter(catalogue.SLICE_MISSES)
        self._aborts = self._counter(catalogue.ABORTS)
        self._ratio = self._histogram(catalogue.COUNT_RATIO)
        self._lag = self._histogram(catalogue.LOOP_LAG)
        self._reloads = self._counters(catalogue.RELOADS, ("changed", "unchanged", "refused"))
        self._decision_drops = self._counter(catalogue.DECISION_DROPS)

    def adopt(self, *, mode: str, max_queue_seconds: float) -> None:
        """Show these settings."""
        self._info.clear()
        self._info.labels(package_version(), mode).set(1)
        self._promise.set(max_queue_seconds)

    def request_done(
        self,
        lane: Lane | None,
        outcome: Outcome,
        *,
        wait_seconds: float | None = None,
        ttft_seconds: float | None = None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        tenant: str | None = None,
    ) -> None:
        """Once for every request. `wait_seconds` and `ttft_seconds` are None for what never got that far."""
        self._requests[NO_LANE if lane is None else lane.value, outcome].inc()
        if tenant is not None:
            requests, tokens = self._of_tenant(self._tenants.bounded(tenant), outcome)
            requests.inc()
            tokens.inc(prompt_tokens + completion_tokens)
        if lane is None:
            return
        if wait_seconds is not None:
            self._waits[lane].observe(wait_seconds)
        if ttft_seconds is not None:
            self._ttfts[lane].observe(ttft_seconds)
        if prompt_tokens:
            self._prompt_tokens[lane].inc(prompt_tokens)
        if completion_tokens:
            self._completion_tokens[lane].inc(completion_tokens)

    def _of_tenant(self, name: str, outcome: Outcome) -> tuple[Counter, Counter]:
        """A tenant's requests with that outcome, and its tokens."""
        children = self._by_tenant.get((name, outcome))
        if children is None:
            children = self._tenant_requests.labels(name, outcome.value), self._tenant_tokens.labels(name)
            self._by_tenant[name, outcome] = children
        return children

    def refused(self, reason: Reason) -> None:
        """Admission said no."""
        self._refusals[reason].inc()

    def backfill(self, rule: str) -> None:
        """A request passed a blocked head by `rule`: the controller's own few names."""
        child = self._rules.get(rule)
        if child is None:
            child = self._rules[rule] = self._backfills.labels(rule)
        child.inc()

    def disconnect(self, phase: Phase) -> None:
        """A client left while its request was in `phase`."""
        self._disconnects[phase].inc()

    def abort(self) -> None:
        """An abort was sent to a server."""
        self._aborts.inc()

    def prefill_slice(self) -> None:
        """A slice was sent."""
        self._slices.inc()

    def prefill_slice_missed(self) -> None:
        """The server did not have the slice before this one any more."""
        self._slice_misses.inc()

    def token_ratio(self, ratio: float) -> None:
        """The server's prompt tokens over the proxy's count."""
        self._ratio.observe(ratio)

    def reserved_minus_actual(self, tokens: int) -> None:
        """Output tokens reserved less those generated; negative when the reserve was outgrown."""
        self._reserve_errors["over" if tokens >= 0 else "under"].observe(abs(tokens))

    def wait_prediction_error(self, seconds: float) -> None:
        """Actual less predicted wait: positive is late."""
        self._wait_errors["late" if seconds > 0 else "early"].observe(abs(seconds))

    def loop_lag(self, seconds: float) -> None:
        """How late the event loop woke up."""
        self._lag.observe(seconds)

    def reloaded(self, outcome: Literal["changed", "unchanged", "refused"]) -> None:
        """The settings were read again."""
        self._reloads[outcome].inc()

    def decision_lines_dropped(self, lines: int) -> None:
        """Lines of the decision log that are lost. Safe to call from any thread."""
        self._decision_drops.inc(lines)

    def render(self) -> bytes:
        """The exposition text for `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _gauge(self, spec: Spec) -> Gauge:
        return Gauge(spec.name, spec.meaning, spec.labels, registry=self.registry)

    def _counter(self, spec: Spec) -> Counter:
        return Counter(spec.name, spec.meaning, spec.labels, registry=self.registry)

    def _histogram(self, spec: Spec) -> Histogram:
        return Histogram(spec.name, spec.meaning, spec.labels, registry=self.registry, buckets=spec.buckets)

    def _counters(self, spec: Spec, values: Iterable[str]) -> Mapping[str, Counter]:
        family = self._counter(spec)
        return {value: family.labels(str(value)) for value in values}

    def _histograms(self, spec: Spec, values: Iterable[str]) -> Mapping[str, Histogram]:
        family = self._histogram(spec)
        return {value: family.labels(str(value)) for value in values}
