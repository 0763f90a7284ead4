"""The proxy's state for others to see: gauges for `/metrics`, JSON for `/admission/status`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from proxy.admission.job import State
from proxy.admission.line import Line
from proxy.admission.types import Lane
from proxy.admission.view import pool_view
from proxy.api.gate import Gate
from proxy.telemetry.snapshot import PoolSnapshot, QueueSnapshot, StateSnapshot
from proxy.tokens.selfcheck import SelfCheck
from proxy.tokens.sizer import Sizer

MOST_RESIDENT_SHOWN = 200
ANY_MODEL = "any"


def snapshot(gate: Gate, checks: Mapping[str, SelfCheck]) -> StateSnapshot:
    """What the gauges show at this moment. `checks`: what the servers said of the tokenizer."""
    now = gate.clock()
    lines = gate.controller.lines
    backends = {name.partition("/")[0] for name in lines}
    return StateSnapshot(
        pools=tuple(_pool(gate, line, now) for line in lines.values()),
        queues=_queues(gate, now),
        open_requests=gate.open_tickets,
        tokenizer_probes={name: check.results for name, check in checks.items() if name in backends},
    )


def _pool(gate: Gate, line: Line, now: float) -> PoolSnapshot:
    pool = line.pool
    backend, _, rank = pool.name.partition("/")
    sample = gate.samples.get(pool.name)
    residents = [
        job for job in pool.jobs.values() if job.request.prompt_tokens > pool.limits.short_prefill_tokens
    ]
    return PoolSnapshot(
        backend=backend,
        dp_rank=int(rank) if rank else None,
        up=pool.up,
        pool_tokens=pool.facts.pool_tokens,
        ceiling_tokens=pool.budget_tokens,
        committed_tokens=pool.committed_by_lane(),
        server_used_tokens=sample.used_tokens if sample else None,
        held_tokens=pool.held_tokens,
        held_contexts=len(pool.holds),
        foreign_tokens=pool.foreign_tokens,
        prefill_backlog_tokens=pool.backlog_tokens,
        resident_contexts=len(residents),
        resident_context_tokens=sum(job.request.prompt_tokens for job in residents),
        gate_closed=line.gate.closed(now),
        load_age_seconds=now - sample.at if sample else None,
        prefill_rate_tokens_per_second=pool.costs.tokens_per_second if pool.costs.known else None,
        running_slots=pool.running_slots,
        retractions=gate.retractions.get(pool.name, 0),
    )


def _queues(gate: Gate, now: float) -> tuple[QueueSnapshot, ...]:
    """Queue figures by the model a pool serves; a queued request has no backend yet."""
    rows: dict[tuple[str, Lane], tuple[int, int, float]] = {}
    for line in gate.controller.lines.values():
        models = line.pool.facts.models
        model = models[0] if models else ANY_MODEL
        for lane in Lane:
            rows.setdefault((model, lane), (0, 0, 0.0))
        for job in line.jobs():
            requests, tokens, age = rows[model, job.lane]
            age = max(age, now - job.arrived_at)
            rows[model, job.lane] = (requests + 1, tokens + job.request.prompt_tokens, age)
    return tuple(
        QueueSnapshot(model=model, lane=lane, requests=requests, tokens=tokens, head_age_seconds=age)
        for (model, lane), (requests, tokens, age) in rows.items()
    )


def status(gate: Gate) -> dict[str, Any]:
    """`/admission/status`: pools, ledgers, lanes, queue, resident contexts."""
    now = gate.clock()
    views = [pool_view(line, now) for line in gate.controller.lines.values()]
    pools = []
    for view in views:
        pool = asdict(view)
        sample = gate.samples.get(view.name)
        residents = sorted(pool.pop("resident"), key=lambda row: -row["committed_tokens"])
        pool["resident_contexts"] = residents[:MOST_RESIDENT_SHOWN]
        pool["queue"] = pool.pop("waiting")
        pool["committed_total_tokens"] = sum(view.committed_tokens.values())
        pool["draining_requests"] = sum(1 for row in residents if row["state"] == State.DRAINING)
        pool["server"] = asdict(sample) | {"age_seconds": round(now - sample.at, 3)} if sample else None
        if pool["server"] is not None:
            pool["server"].pop("at")
        pool["down_reason"] = gate.down_reasons.get(view.name)
        pools.append(pool)
    return {"draining": gate.controller.draining, "open_requests": gate.open_tickets, "pools": pools}


def counting(sizer: Sizer, checks: Mapping[str, SelfCheck]) -> dict[str, Any]:
    """How tokens are counted, and by which servers that was confirmed."""
    return sizer.stats()._asdict() | {"self_check": {name: _check(found) for name, found in checks.items()}}


def _check(found: SelfCheck) -> dict[str, Any]:
    return {
        "wrong": found.wrong,
        "verdict": found.verdict,
        "results": found.results,
        "different": [
            {"probe": probe.name, "ours": probe.ours, "server": probe.server}
            for probe in found.probes
            if probe.result == "different"
        ],
    }
