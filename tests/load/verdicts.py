"""Rows that more than one scenario is judged by."""

from collections.abc import Sequence
from statistics import fmean

from tests.load.figures import Row, Run, inform, problems, quantile, require


def common_rows(direct: Run, proxied: Run) -> list[Row]:
    """What always holds where both ways did the same work."""
    return [
        *safety_rows(proxied, direct),
        require(
            "prompt + output tokens", _work(direct), _work(proxied), "the same", direct.work == proxied.work
        ),
        inform("CPU seconds", _cpu(direct), _cpu(proxied)),
    ]


def safety_rows(proxied: Run, direct: Run | None = None) -> list[Row]:
    """The engine's queue stays short, nothing fails, and all tokens come back."""
    short_queue = proxied.share_of_samples(waiting_at_most=1)
    before = direct.failures if direct else []
    failed = [*before, *proxied.failures]
    left = {name: value for name, value in proxied.ledger.items() if value != 0}
    return [
        require(
            "engine's own queue <= 1",
            f"{direct.share_of_samples(waiting_at_most=1):.1%}" if direct else "",
            f"{short_queue:.1%}",
            ">= 99 % of samples",
            short_queue >= 0.99,
        ),
        require(
            "failed requests",
            str(len(before)) if direct else "",
            str(len(proxied.failures)),
            "0" + (f": {'; '.join(problems(failed))[:120]}" if failed else ""),
            not failed,
        ),
        require("ledger at the end", "", str(left or 0), "exactly 0", not left and bool(proxied.ledger)),
    ]


def mean_ttft(run: Run, kind: str) -> float:
    return fmean(run.ttfts(kind))


def ttft(run: Run, kind: str, share: float) -> float:
    """The quantile of the times to the first token."""
    return quantile(run.ttfts(kind), share)


def under(figure: str, direct: float | None, proxied: float, at_most: float) -> Row:
    """A time of the proxied run with a limit of its own, beside the direct one."""
    before = "" if direct is None else f"{direct:.3f} s"
    return require(figure, before, f"{proxied:.3f} s", f"<= {at_most:g} s", proxied <= at_most)


def at_least(figure: str, before: str, value: float, least: float, shown: str = "") -> Row:
    """A ratio or share that must not be smaller."""
    return require(figure, before, shown or f"{value:.2f}", f">= {least:g}", value >= least)


def share_of(flags: Sequence[bool]) -> float:
    """How many are true; all of none."""
    return fmean(flags) if flags else 1.0


def _work(run: Run) -> str:
    return " + ".join(f"{tokens:,}" for tokens in run.work)


def _cpu(run: Run) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.cpu_seconds.items())
