"""The operator's limits, as the core sees them. Defaults are those of the settings table."""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """What the controller's word counts for."""

    ENFORCE = "enforce"
    SHADOW = "shadow"  # decide and say so, but hold and refuse nobody
    OFF = "off"  # keep the ledgers, decide nothing


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares are of the pool (K) unless said otherwise; see docs/algorithm.md for the symbols."""

    mode: Mode = Mode.ENFORCE
    pool_headroom: float = 0.03  # B = (1 - headroom) K: counts are off by 2-3 % of a pool's sum
    short_prefill_tokens: int = 8192  # one chunk of SGLang's default: what blocks nobody for long
    express_share: float = 0.10  # of K, kept for shorts while longs fill the rest
    max_long_prefills: int = 1  # two would halve each other's speed and double the wait behind them
    slice_seconds: float = 0.25  # 0: prompts go whole
    slice_max_tokens: int | None = None  # None: the server's chunk
    session_hold_seconds: float = 10.0  # longest hold of an idle conversation's context; 0: none
    max_long_contexts: int | None = None
    max_prompt_tokens: int | None = None
    long_tier_tokens: int | None = None  # None: nothing is long enough for the long tier by itself
    strict_models: bool = False  # True: a model that no server names is refused, whatever they serve
    max_bypass_seconds: float = 15.0  # A: how long a blocked long head may be passed for free
    bypass_budget: float = 0.25  # beta: by how many tokens, as a share of B
    max_queue_seconds: float = 60.0
    max_queue_requests: int = 1000
    max_queue_tokens: int | None = None  # None: 20 x the pool
    output_reserve_quantile: float = 0.8
    output_reserve_cap: int = 4096  # what SGLang itself reserves at most
    min_short_room_tokens: int = 4096  # beside a resident giant, where the pool has it at all
    short_slot_share: float = 0.10  # of max_running_requests, kept for shorts
    drain_seconds: float = 10.0  # after an abort nobody confirmed, the charge is dropped
    accept_again: float = 0.8  # hysteresis: refuse above the limit, accept below this share of it
    tokenize_seconds_per_token: float = 2.5e-6  # server-side, before a prompt reaches its scheduler
    send_ahead_seconds: float = 0.03  # how early work is sent to be there when the engine is free


QUEUE_TOKENS_POOLS = 20  # max_queue_tokens, where unset, in pools
