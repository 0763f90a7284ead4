"""Could this limit have acted at all? Asked of each by deciding again without it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

from proxy.admission.limits import Limits
from proxy.admission.types import Reason
from proxy.settings_text import variable
from proxy.simulator.records import Run
from proxy.simulator.watched import Seen
from proxy.simulator.without import Difference


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run showed, for the words beside each answer."""

    run: Run
    seen: Seen
    limits: Limits
    pool_tokens: int

    def most(self, name: str) -> str:
        """The largest value seen of a count, written out."""
        return f"{self.seen.most[name]:,.0f}"

    def refused(self, reason: Reason) -> int:
        return self.seen.refusals[reason.value]

    def share(self, share: float) -> str:
        return f"{share * self.pool_tokens:,.0f}"


@dataclass(frozen=True, slots=True)
class Question:
    """A limit: its setting, what stands for its absence, and what was seen of it.

    `field` is its name in `Limits`; `no_limit` what it may be without being a limit; `unset` what None
    stands for, where that is a limit too. A limit that can only refuse for certain `reasons` is known not
    to have acted when nobody was.
    """

    setting: str
    field: str
    without: Any
    seen: Callable[[Evidence], str]
    no_limit: tuple[Any, ...] = ()
    unset: str = ""
    reasons: tuple[Reason, ...] = ()

    @property
    def variable(self) -> str:
        return variable(self.setting)

    def asked_of(self, limits: Limits) -> bool:
        """Is it a limit there?"""
        value = getattr(limits, self.field)
        return value != self.without and value not in self.no_limit

    def open(self, evidence: Evidence) -> bool:
        """Does the answer take another run?"""
        surely_idle = bool(self.reasons) and not any(map(evidence.refused, self.reasons))
        return self.asked_of(evidence.limits) and not surely_idle

    def shown(self, limits: Limits) -> str:
        """Its value as the operator would write it; "" where it is no limit."""
        value = getattr(limits, self.field)
        if not self.asked_of(limits):
            return ""
        return self.unset if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def lifted(self, limits: Limits) -> Limits:
        """The limits without this one."""
        return replace(limits, **{self.field: self.without})


@dataclass(frozen=True, slots=True)
class Answer:
    """`value` "": there is no such limit. `first` None: without it every decision is the same."""

    variable: str
    value: str
    first: Difference | None
    kind: str  # of the request that `first` is about
    seen: str

    @property
    def acted(self) -> bool:
        return self.first is not None


def _longs(e: Evidence) -> str:
    lanes = [record.lane for record in e.run.records]
    return f"{lanes.count('short')} short, {len(lanes) - lanes.count('short')} long or giant"


def _express(e: Evidence) -> str:
    kept = e.share(e.limits.express_share)
    return f"shorts held at most {e.most('short_tokens')} tokens, {kept} are kept for them"


def _headroom(e: Evidence) -> str:
    budget = int(e.pool_tokens * (1 - e.limits.pool_headroom))
    return f"at most {e.most('committed_tokens')} tokens were committed, {budget:,} may be"


def _slices(e: Evidence) -> str:
    sliced = e.seen.sliced
    return f"{len(sliced)} prompts in {sliced.total()} slices, {e.seen.slice_misses} missed"


def _bypass_age(e: Evidence) -> str:
    oldest = e.seen.most["blocked_seconds"]
    return f"the oldest blocked long was {oldest:.1f} s old; times the gate closed: {e.seen.gate_closures}"


def _bypass_tokens(e: Evidence) -> str:
    passed = e.most("bypassed_tokens")
    return f"at most {passed} tokens passed a blocked long, {e.share(e.limits.bypass_budget)} may"


def _queue_seconds(e: Evidence) -> str:
    refused = e.refused(Reason.WOULD_MISS_DEADLINE) + e.refused(Reason.DEADLINE)
    return f"the longest wait was {e.seen.most['wait_seconds']:.1f} s; {refused} were refused for it"


QUESTIONS = (
    Question("pool_headroom", "pool_headroom", 0.0, _headroom),
    Question("express_share", "express_share", 0.0, _express),
    Question("short_prefill_tokens", "short_prefill_tokens", 10**12, _longs),
    Question(
        "max_long_prefills",
        "max_long_prefills",
        10**6,
        lambda e: f"at most {e.most('long_contexts')} longs held a place at once",
    ),
    Question("prefill_slice_seconds", "slice_seconds", 0.0, _slices),
    Question("prefill_slice_max_tokens", "slice_max_tokens", None, _slices, no_limit=(0,)),
    Question("max_bypass_seconds", "max_bypass_seconds", inf, _bypass_age),
    Question("bypass_budget", "bypass_budget", 1e9, _bypass_tokens),
    Question("max_queue_seconds", "max_queue_seconds", 1e9, _queue_seconds),
    Question(
        "max_queue_requests",
        "max_queue_requests",
        10**9,
        lambda e: f"at most {e.most('queue_requests')} waited; {e.refused(Reason.QUEUE_FULL)} found it full",
        reasons=(Reason.QUEUE_FULL,),
    ),
    Question(
        "max_queue_tokens",
        "max_queue_tokens",
        10**15,
        lambda e: f"at most {e.most('queue_tokens')} tokens waited",
        unset="20 x pool",
        reasons=(Reason.QUEUE_FULL,),
    ),
    Question(
        "max_prompt_tokens",
        "max_prompt_tokens",
        None,
        lambda e: (
            f"the largest prompt was {max((r.prompt_tokens for r in e.run.records), default=0):,}; "
            f"{e.refused(Reason.CONTEXT_LENGTH_EXCEEDED)} were refused as too long"
        ),
        reasons=(Reason.CONTEXT_LENGTH_EXCEEDED,),
    ),
    Question(
        "max_long_contexts",
        "max_long_contexts",
        None,
        lambda e: f"at most {e.most('long_contexts')} longs held a place at once",
    ),
    Question(
        "long_tier_tokens",
        "long_tier_tokens",
        None,
        lambda e: "only one pool is replayed: there is no other tier to send it to",
    ),
    Question(
        "output_reserve_quantile",
        "output_reserve_quantile",
        1.0,
        lambda e: "without it, the longest output seen is reserved",
    ),
    Question(
        "output_reserve_cap",
        "output_reserve_cap",
        10**9,
        lambda e: f"the longest output was {max((r.completion_tokens for r in e.run.records), default=0):,}",
    ),
    Question(
        "session_hold_seconds",
        "session_hold_seconds",
        0.0,
        lambda e: "without it, no idle conversation is held",
    ),
)


def questions(limits: Limits) -> Iterator[Question]:
    """Those whose limit this version of the core knows."""
    known = {field.name for field in fields(limits)}
    return (question for question in QUESTIONS if question.field in known)


def answer(question: Question, evidence: Evidence, first: Difference | None) -> Answer:
    """In words. `first` is what differs without the limit."""
    kinds: Mapping[str, str] = {record.rid: record.kind for record in evidence.run.records}
    return Answer(
        question.variable,
        question.shown(evidence.limits),
        first,
        kinds.get(first.rid, "") if first else "",
        question.seen(evidence),
    )
