"""An examination as JSON."""

from dataclasses import asdict
from typing import Any

from proxy.admission.limits import Limits
from proxy.doctor.asking import Answers
from proxy.doctor.capacity import contexts_that_fit, largest_prompt
from proxy.doctor.examination import Examination, Examined
from proxy.doctor.finding import Level
from proxy.doctor.text import CONTEXTS


def document(examination: Examination) -> dict[str, Any]:
    """All that the text says, as plain values. No keys are in it."""
    return {
        "servers": [_server(server, examination.limits) for server in examination.servers],
        "settings": {
            "findings": [asdict(finding) for finding in examination.idle],
            "recommended": [asdict(advice) for advice in examination.advice],
        },
        "troubles": examination.count(Level.TROUBLE),
        "warnings": examination.count(Level.WARNING),
    }


def _server(server: Examined, limits: Limits) -> dict[str, Any]:
    answers = server.answers
    return {
        "name": answers.spec.name,
        "url": answers.spec.url,
        "tier": answers.spec.tier,
        "reachable": not answers.unreachable,
        "can_take_work": answers.discovery is not None,
        "reason": answers.unreachable or answers.refusal or None,
        "statuses": {path.partition("?")[0]: status for path, status in answers.statuses.items()},
        "abort_status": answers.abort_status or None,
        "prefill_tokens_per_second": answers.prefill_rate,
        "facts": _facts(answers, limits),
        "counting": _counting(answers),
        "findings": [asdict(finding) for finding in server.findings],
    }


def _facts(answers: Answers, limits: Limits) -> dict[str, Any] | None:
    if answers.discovery is None:
        return None
    info = answers.discovery.info
    source = answers.discovery.loads
    return {
        "version": info.version,
        "models": list(info.models),
        "load_source": source.path.partition("?")[0] if source else None,
        "schedule_policy": info.schedule_policy,
        "metrics_enabled": info.metrics_enabled,
        "disaggregation_mode": info.disaggregation_mode,
        "max_queued_requests": info.max_queued_requests,
        "reported_pool_tokens": answers.reported_pool_tokens,
        "window_pool_tokens": answers.traits.window_pool_tokens,
        "state_pool": answers.traits.state_pool,
        "ranks": [
            asdict(facts)
            | {
                "largest_prompt_tokens": largest_prompt(facts, limits),
                "fit_at_once": {name: contexts_that_fit(facts, limits, size) for name, size in CONTEXTS},
            }
            for facts in info.ranks
        ],
    }


def _counting(answers: Answers) -> dict[str, Any] | None:
    check = answers.check
    if check is None:
        return None
    return {
        "wrong": check.wrong,
        "verdict": check.verdict,
        "results": check.results,
        "error_share": check.error_share,
    }
