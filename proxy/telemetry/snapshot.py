"""What the proxy's state looks like at one moment, for `/metrics`: plain values, built on demand."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.admission.types import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """One KV pool: a backend, or one DP rank of it. Figures in tokens unless the name says otherwise.

    `dp_rank` is None where the backend has a single rank. `load_age_seconds` and
    `prefill_rate_tokens_per_second` are None while unknown, and then not exported.
    """

    backend: str
    dp_rank: int | None = None
    up: bool = False
    pool_tokens: int = 0
    ceiling_tokens: int = 0
    committed_tokens: Mapping[Lane, int] = field(default_factory=dict)
    held_tokens: int = 0
    held_contexts: int = 0
    server_used_tokens: int | None = None
    foreign_tokens: int = 0
    prefill_backlog_tokens: int = 0
    resident_contexts: int = 0
    resident_context_tokens: int = 0
    gate_closed: bool = False
    load_age_seconds: float | None = None
    prefill_rate_tokens_per_second: float | None = None
    running_slots: int = 0
    retractions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """What waits for one model in one lane."""

    model: str
    lane: Lane
    requests: int
    tokens: int
    head_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """Everything the gauges show. `open_requests`: requests being read, waiting, running or answered.

    `tokenizer_probes`: by backend, how many probes of the tokenizer came to which result.
    """

    pools: tuple[PoolSnapshot, ...] = ()
    queues: tuple[QueueSnapshot, ...] = ()
    open_requests: int = 0
    tokenizer_probes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
