"""What a line of the decision log holds: the decision, the request, and every signal it saw.

Enough to replay another policy over it (`sglang-admission-proxy plan --trace FILE`); no text of
any prompt: shared prefixes and conversations go by an alias. Times: `ts` is the wall clock, `at`
the monotonic clock all other lines share.
"""

import time
from collections.abc import Callable, Mapping

from proxy.admission.controller import Controller
from proxy.admission.line import Line
from proxy.admission.types import Dispatch, LoadSample, Refuse, Request
from proxy.api.ticket import Ticket

MOST_SEGMENTS = 512  # of a prompt's prefix: about 390,000 tokens, 12 KB of a line


def decision_line(
    controller: Controller,
    samples: Mapping[str, LoadSample],
    now: float,
    ticket: Ticket,
    action: Dispatch | Refuse,
    alias: Callable[[bytes], str],
) -> dict[str, object]:
    """One `dispatch` or `refuse`. `samples`: the newest load of each pool."""
    request = ticket.request
    line: dict[str, object] = {
        "ts": time.time(),
        "at": now,
        "rid": request.rid,
        "arrived_at": ticket.arrived_at,
        **_asked(request, alias),
        "lane": action.lane.value,
    }
    if isinstance(action, Dispatch):
        job = controller.jobs.get(request.rid)
        line |= {
            "event": "dispatch",
            "pool": action.pool,
            "rule": action.rule,
            "verdict": action.verdict or None,
            "waited_s": action.waited_seconds,
            "predicted_wait_s": ticket.predicted_wait_seconds or action.predicted_wait_seconds,
            "reserve_tokens": job.reserve_tokens if job is not None else None,
        }
    else:
        line |= {
            "event": "refuse",
            "reason": action.reason.value,
            "limit": action.tenant_limit.name if action.tenant_limit is not None else None,
            "waited_s": now - ticket.arrived_at,
            "predicted_wait_s": action.predicted_wait_seconds,
            "retry_after_s": action.retry_after_seconds,
            "needed_tokens": action.needed_tokens,
            "queue_position": action.queue_position,
        }
    line["pools"] = [
        _signals(pool_line, samples.get(name), now) for name, pool_line in controller.lines.items()
    ]
    return line


def _asked(request: Request, alias: Callable[[bytes], str]) -> dict[str, object]:
    """The request as admission knows it. `segments`: what may be shared of its prompt, from its start,
    as (alias of everything up to its end, tokens)."""
    return {
        "prompt_tokens": request.prompt_tokens,
        "uncertainty": round(request.uncertainty, 3),
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "sequences": request.sequences,
        "sliceable": request.sliceable,
        "model": request.model,
        "tenant": request.tenant,
        "weight": request.weight,
        "session": alias(request.session.encode()) if request.session else None,
        "segments": [(alias(part.key), part.tokens) for part in request.segments[:MOST_SEGMENTS]],
        "wait_limit_s": request.wait_limit_seconds,
    }


def end_line(
    now: float, ticket: Ticket, prompt_tokens: int | None, completion_tokens: int, *, completed: bool
) -> dict[str, object]:
    """One `finish`: what the request turned out to be."""
    return {
        "ts": time.time(),
        "at": now,
        "event": "finish",
        "rid": ticket.request.rid,
        "completed": completed,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "dispatched_at": ticket.dispatched_at,
        "first_token_at": ticket.first_token_at,
    }


def _signals(line: Line, sample: LoadSample | None, now: float) -> dict[str, object]:
    pool = line.pool
    return {
        "pool": pool.name,
        "up": pool.up,
        "K": pool.facts.pool_tokens,
        "B": pool.budget_tokens,
        "C": pool.committed_tokens,
        "W": pool.backlog_tokens,
        "E": round(pool.engine_tokens),
        "S": pool.running_slots,
        "R": round(pool.costs.tokens_per_second),
        "foreign": pool.foreign_tokens,
        "held": pool.held_tokens,
        "gate_closed": line.gate.closed(now),
        "queued_shorts": len(line.shorts),
        "queued_longs": len(line.longs),
        "used": sample.used_tokens if sample else None,
        "running": sample.running if sample else None,
        "waiting": sample.waiting if sample else None,
        "load_age_s": round(now - sample.at, 3) if sample else None,
    }
