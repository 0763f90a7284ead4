"""An examination in plain text."""

import textwrap
from collections.abc import Iterator, Sequence

from proxy.admission.limits import Limits
from proxy.admission.types import PoolFacts
from proxy.doctor.asking import Answers
from proxy.doctor.capacity import USUAL_OUTPUT_TOKENS, contexts_that_fit, largest_prompt
from proxy.doctor.examination import Examination
from proxy.doctor.finding import Finding, Level
from proxy.upstream.discovery import LOAD_SOURCES, Discovery

WIDTH = 110
CONTEXTS = (("64K", 64_000), ("180K", 180_000))
_LABEL = 18


def report(examination: Examination) -> str:
    """Each server, then the settings, then the verdict in one line."""
    parts = []
    for server in examination.servers:
        lines = [f"{server.answers.spec.name}  {server.answers.spec.url}"]
        for label, text in _facts(server.answers, examination.limits):
            lines += _wrapped(f"  {label:{_LABEL}}", text)
        lines += _listed(server.findings)
        parts.append("\n".join(lines))
    parts.append(_settings(examination))
    parts.append(_verdict(examination))
    return "\n\n".join(parts) + "\n"


def _facts(answers: Answers, limits: Limits) -> Iterator[tuple[str, str]]:
    if answers.ready_seconds is not None:
        yield "reachable", f"yes, in {answers.ready_seconds * 1000:.0f} ms"
    if answers.discovery is None:
        return
    info = answers.discovery.info
    facts = info.ranks[0]
    yield "version", f"SGLang {info.version or 'unknown'}"
    yield "models", ", ".join(info.models) or "does not say"
    yield "pool", _pools(info.ranks)
    context = f"{facts.context_tokens:,} tokens" if facts.context_tokens else "does not say"
    yield "context", f"{context}; the largest prompt that can run: {largest_prompt(facts, limits):,}"
    fit = ", ".join(f"{contexts_that_fit(facts, limits, size)} of {name}" for name, size in CONTEXTS)
    each = " in each rank" if len(info.ranks) > 1 else ""
    yield "fit at once", f"{fit}{each} (each with {USUAL_OUTPUT_TOKENS} tokens of output)"
    slots = str(facts.max_running_requests) if facts.max_running_requests else "does not say"
    yield "running slots", slots
    yield "prefill chunk", f"{facts.chunk_tokens:,} tokens; page size {facts.page_tokens}"
    policy = info.schedule_policy or "does not say"
    yield "schedule", f"{policy}, conservativeness {facts.conservativeness:g}"
    yield "switches", _switches(answers.discovery)
    yield "load", _load(answers)
    yield "now", _now(answers)
    rate = answers.prefill_rate
    seen = (
        f"{rate:,.0f} tokens/s, the mean since it started"
        if rate
        else "not known: it has hardly done any yet"
    )
    yield "prefill rate", seen
    yield "vocabulary", f"{facts.vocab_tokens:,} ids" if facts.vocab_tokens else "not known"
    yield "keys", _keys(answers)
    if answers.check is not None:
        yield "counting", answers.check.verdict


def _pools(ranks: Sequence[PoolFacts]) -> str:
    sizes = " + ".join(f"{facts.pool_tokens:,}" for facts in ranks)
    return f"{sizes} tokens ({len(ranks)} DP {'rank' if len(ranks) == 1 else 'ranks'})"


def _switches(discovery: Discovery) -> str:
    facts = discovery.info.ranks[0]
    switches = {
        "radix cache": facts.radix_cache,
        "cache report": facts.cache_report,
        "metrics": discovery.info.metrics_enabled,
    }
    return ", ".join(f"{name} {'on' if on else 'off'}" for name, on in switches.items())


def _load(answers: Answers) -> str:
    used = answers.discovery.loads if answers.discovery else None
    texts = []
    for source in LOAD_SOURCES:
        name, status = source.path.partition("?")[0], answers.statuses.get(source.path, "not asked")
        works = "works" if status == 200 else str(status)
        texts.append(f"{name} {works}{' (used)' if used is not None and used.path == source.path else ''}")
    ages = [load.age_seconds for load in answers.loads]
    age = f"; {max(ages):.1f} s old" if ages else ""
    return ", ".join(texts) + age


def _now(answers: Answers) -> str:
    if not answers.loads:
        return "not known"
    used, running, waiting = (
        sum(getattr(load, name) for load in answers.loads) for name in ("used_tokens", "running", "waiting")
    )
    return f"{used:,} tokens used, {running} running, {waiting} waiting"


def _keys(answers: Answers) -> str:
    own = {True: "the API key is taken", False: "no API key is needed"}[bool(answers.spec.api_key)]
    if answers.abort_status == 200:
        return f"{own}; aborts are allowed"
    return f"{own}; aborts answer {answers.abort_status}"


def _listed(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        lines += _wrapped(f"  {finding.level.upper() + ':':{_LABEL}}", finding.text + remedy)
    return lines


def _settings(examination: Examination) -> str:
    lines = ["Settings", *_listed(examination.idle)]
    for advice in examination.advice:
        lines += _wrapped(f"  {'recommended:':{_LABEL}}", f"{advice.variable}={advice.value}")
        lines += _wrapped(" " * (2 + _LABEL), advice.reason)
    if len(lines) == 1:
        lines.append("  nothing to change")
    return "\n".join(lines)


def _verdict(examination: Examination) -> str:
    troubles, warnings = examination.count(Level.TROUBLE), examination.count(Level.WARNING)
    reached = sum(server.answers.discovery is not None for server in examination.servers)
    counts = f"troubles: {troubles}, warnings: {warnings}, recommendations: {len(examination.advice)}"
    return f"{reached} of {len(examination.servers)} servers can take work; {counts}"


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
