"""One frame of `/admission/live`: pools, queue and recent figures as JSON, never a word of a prompt."""

import secrets
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any

from proxy.admission.job import Job, State
from proxy.admission.line import Line
from proxy.admission.pool import Pool
from proxy.admission.queue import FairQueue
from proxy.admission.types import Lane
from proxy.api.gate import Gate
from proxy.telemetry.recent import BUCKET_SECONDS

MOST_BLOCKS = 200  # the largest; what is left is one block more
MOST_WAITING = 8  # of each queue; predicting a long wait looks at every resident
# Names of conversations may be their users' names: they are shown as a hash that nobody can repeat.
_HASH_KEY = secrets.token_bytes(16)
_LANES = (Lane.GIANT, Lane.LONG, Lane.SHORT)  # the order in which the pool is drawn


def frame(gate: Gate) -> dict[str, Any]:
    """All that the page shows at this moment. Tokens and seconds."""
    now = gate.clock()
    recent = gate.recent
    return {
        "draining": gate.controller.draining,
        "open_requests": gate.open_tickets,
        "bucket_seconds": BUCKET_SECONDS,
        "pools": [_pool(gate, line, now) for line in gate.controller.lines.values()],
        "ttft": {
            lane.value: {
                "last": _rounded(recent.last_ttft_seconds.get(lane)),
                "worst": [_rounded(value) for value in recent.worst_ttft_seconds(now, lane)],
            }
            for lane in Lane
        },
        "refusals": {reason.value: count for reason, count in recent.refusals.items()},
    }


def _pool(gate: Gate, line: Line, now: float) -> dict[str, Any]:
    pool = line.pool
    blocks, others = _blocks(pool, now)
    sample = gate.samples.get(pool.name)
    return {
        "name": pool.name,
        "model": pool.facts.models[0] if pool.facts.models else None,
        "up": pool.up,
        "down_reason": gate.down_reasons.get(pool.name),
        "pool_tokens": pool.facts.pool_tokens,
        "budget_tokens": pool.budget_tokens,
        "committed_tokens": pool.committed_tokens,
        "held_tokens": pool.held_tokens,
        "held_contexts": len(pool.holds),
        "foreign_tokens": pool.foreign_tokens,
        "free_tokens": pool.free_tokens,
        "server_used_tokens": sample.used_tokens if sample else None,
        "gate_closed": line.gate.closed(now),
        "running_slots": pool.running_slots,
        "max_slots": pool.facts.max_running_requests,
        "prefill_tokens_per_second": round(pool.costs.tokens_per_second) if pool.costs.known else None,
        "contexts": len(pool.jobs),
        "blocks": blocks,
        "others": others,
        # prefixes whose payer has ended and that riders still use: nobody's own, but committed
        "shared_tokens": pool.committed_tokens - sum(pool.own_tokens(job) for job in pool.jobs.values()),
        "queues": [_queue(line, line.shorts, "short", now), _queue(line, line.longs, "long", now)],
    }


def _blocks(pool: Pool, now: float) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The largest residents, oldest first within their lane; and the number and tokens of the others."""
    largest = sorted(pool.jobs.values(), key=pool.own_tokens, reverse=True)
    shown, others = largest[:MOST_BLOCKS], largest[MOST_BLOCKS:]
    shown.sort(key=lambda job: (_LANES.index(job.lane), job.dispatched_at))
    rows = [
        {
            "id": job.rid[:12],
            "lane": job.lane.value,
            "state": job.state.value,
            "tokens": pool.own_tokens(job),
            "prompt_tokens": job.prompt_tokens,
            "generated_tokens": job.generated_tokens,
            "age": round(now - job.dispatched_at, 1),
            "sliced": _sliced_share(job),
            "conversation": _conversation(job),
        }
        for job in shown
    ]
    return rows, {"count": len(others), "tokens": sum(map(pool.own_tokens, others))}


def _queue(line: Line, queue: FairQueue, name: str, now: float) -> dict[str, Any]:
    return {
        "name": name,
        "requests": len(queue),
        "tokens": queue.tokens,
        "head": list(_waiting(line, queue, now)),
    }


def _waiting(line: Line, queue: FairQueue, now: float) -> Iterator[dict[str, Any]]:
    for position, job in enumerate(islice(queue.in_order(), MOST_WAITING), 1):
        yield {
            "id": job.rid[:12],
            "lane": job.lane.value,
            "position": position,
            "tokens": job.prompt_tokens,
            "waited": round(now - job.arrived_at, 1),
            "eta": _rounded(line.predicted_wait(job, now)),
            "conversation": _conversation(job),
        }


def _sliced_share(job: Job) -> float | None:
    if job.state is not State.SLICING:
        return None
    return round(job.sliced_tokens / max(1, job.prompt_tokens), 2)


def _conversation(job: Job) -> str | None:
    """A short name of the conversation that the client named, the same for all its turns; else None."""
    request = job.request
    if not request.session:
        return None
    named = f"{request.tenant}\0{request.session}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=3, key=_HASH_KEY).hexdigest()


def _rounded(seconds: float | None) -> float | None:
    """None too where there is no telling: JSON has no infinity."""
    return round(seconds, 3) if seconds is not None and seconds < 1e9 else None
