"""What is required, what is reached for, and the table that says how it stands."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One figure. `required` and `reach` are upper bounds, lower ones where `at_least`; None: only shown."""

    name: str
    text: str
    unit: str
    required: float | None = None
    reach: float | None = None
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether the required bound is kept."""
        return self.required is None or self._within(value, self.required)

    def _within(self, value: float, bound: float) -> bool:
        return value >= bound if self.at_least else value <= bound

    def verdict(self, value: float) -> str:
        if self.required is None:
            return ""
        if not self.holds(value):
            return "FAIL"
        return "ok +" if self.reach is not None and self._within(value, self.reach) else "ok"


TARGETS: Sequence[Target] = (
    Target("c1_p50", "added latency p50, one connection", "ms", 1.0, 0.5),
    Target("c1_p99", "added latency p99, one connection", "ms", 2.5, 1.2),
    Target("r100_p50", "added latency p50, 100 requests/s", "ms"),
    Target("r100_p99", "added latency p99, 100 requests/s", "ms"),
    Target("c32_rate", "requests per second, 32 connections", "/s", 1500, 3000, at_least=True),
    Target("c128_rate", "requests per second, 128 connections", "/s"),
    Target("request_cpu", "CPU for 1,000 requests (32 connections)", "s", 0.7, 0.35),
    Target("s64_cpu", "CPU for a streamed chunk, 64 x 40/s", "us", 80, 45),
    Target("s64_p50", "delay added to a chunk p50, 64 x 40/s", "ms", 1.0, 0.5),
    Target("s64_p99", "delay added to a chunk p99, 64 x 40/s", "ms", 5.0, 2.5),
    Target("s256_pace", "256 x 40/s: share of the direct pace", "", 0.98, 0.995, at_least=True),
    Target("s256_p50", "delay added to a chunk p50, 256 x 40/s", "ms"),
    Target("s256_cpu", "CPU for a streamed chunk, 256 x 40/s", "us"),
    Target("flat_rate", "chunks per second, 16 streams flat out", "/s", 12_000, 25_000, at_least=True),
    Target("b256_p50", "added latency p50, body of 256 KB", "ms"),
    Target("b256_cpu", "CPU for a body of 256 KB", "ms"),
    Target("b800_p50", "added latency p50, body of 800 KB", "ms"),
    Target("b800_cpu", "CPU for a body of 800 KB", "ms"),
    Target("giants_gap", "p99.9 gap of 64 streams, more with 40 x 180K tokens", "ms", 20),
    Target("giant_gap", "p99.9 gap of 64 streams, more with 1 x 180K tokens", "ms", 20),
    Target("idle_memory", "memory, idle", "MB", 150, 130),
    Target("queued_memory", "memory for a queued 64K request beyond its body", "KB", 20),
    Target("start", "start until /ready with a live backend", "s", 1.5, 0.8),
)


def medians(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The middle value of each figure over the rounds that have it."""
    collected: dict[str, list[float]] = {}
    for figures in rounds:
        for name, value in figures.items():
            collected.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in collected.items()}


def table(figures: Mapping[str, float], rounds: Sequence[Mapping[str, float]]) -> str:
    """One line a figure: the median, the rounds' range, the bounds and the verdict."""
    lines = [f"{'':51} {'median':>9} {'of the rounds':>19} {'must be':>10} {'reach for':>10}"]
    for target in TARGETS:
        if target.name not in figures:
            continue
        values = [found[target.name] for found in rounds if target.name in found]
        spread = f"{_number(min(values))} .. {_number(max(values))}" if len(values) > 1 else ""
        sign = ">=" if target.at_least else "<="
        required = "" if target.required is None else f"{sign} {_number(target.required)}"
        reach = "" if target.reach is None else f"{sign} {_number(target.reach)}"
        text = f"{target.text}{f' ({target.unit})' if target.unit else ''}"
        value = figures[target.name]
        bounds = f"{required:>10} {reach:>10} {target.verdict(value)}"
        lines.append(f"{text:51} {_number(value):>9} {spread:>19} {bounds}".rstrip())
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
