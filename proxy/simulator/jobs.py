"""What the engine works on, what it is told and what it tells."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proxy.simulator.pace import PACES, Pace
from proxy.simulator.prompt import Prompt
from proxy.simulator.radix import Node

# SGLang counts at most this much future output of a request when it admits (`CLIP_MAX_NEW_TOKENS`).
CLIP_NEW_TOKENS = 4096


class Policy(StrEnum):
    """How the waiting queue is ordered (`--schedule-policy`)."""

    FCFS = "fcfs"
    SHORTEST_PREFILL_FIRST = "shortest-prefill-first"
    LPM = "lpm"


class EndReason(StrEnum):
    """Why a request left the engine."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    QUEUE_FULL = "queue_full"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One SGLang server's arguments, as far as its scheduler goes; defaults are SGLang's but for the pool."""

    pool_tokens: int = 186_624
    context_tokens: int = 1_048_576
    chunk_tokens: int = 8192  # chunked_prefill_size
    max_prefill_tokens: int = 16_384
    max_running_requests: int = 64
    max_queued_requests: int | None = None
    conservativeness: float = 1.0
    policy: Policy = Policy.FCFS
    radix_cache: bool = True
    tokenize_token_seconds: float = 4e-6  # 180K tokens of text: 0.7 s on the CPU
    pace: Pace = field(default=PACES["h200-8b"])

    @property
    def max_request_tokens(self) -> int:
        """Longest prompt it takes (`max_req_input_len`)."""
        return min(self.context_tokens - 1, self.pool_tokens - 1) - 5


@dataclass(slots=True, eq=False)
class Job:
    """One request inside the engine."""

    rid: str
    prompt: Prompt
    max_new: int  # clipped to what the pool and the context can hold
    output_tokens: int  # where its end-of-sequence would come
    ignore_eos: bool = False
    output_key: Any = None  # identifies its output to the prefix cache
    entered_at: float = 0.0  # into the waiting queue
    generated: int = 0
    node: Node[Any] | None = None  # what it locks in the cache
    prefix: int = 0  # tokens up to there
    private: int = 0  # tokens held beside the cache
    cached: int | None = None  # of its prompt, when it was admitted first
    retractions: int = 0
    aborting: bool = False

    @property
    def length(self) -> int:
        """Tokens to attend to: the prompt and what was generated."""
        return self.prompt.tokens + self.generated

    @property
    def target(self) -> int:
        """Output tokens at which it ends."""
        return min(self.output_tokens, self.max_new)

    @property
    def done(self) -> bool:
        return self.generated >= self.target

    @property
    def end_reason(self) -> EndReason:
        return EndReason.LENGTH if self.generated >= self.max_new else EndReason.STOP

    def text(self) -> Prompt:
        """The prompt, followed by what was generated so far."""
        return self.prompt.followed_by(self.output_key, self.generated) if self.generated else self.prompt


# --- what it tells ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The first token."""

    at: float
    rid: str
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Retracted:
    """Thrown back into the queue since the pool was full while decoding."""

    at: float
    rid: str


@dataclass(frozen=True, slots=True)
class Ended:
    """It left: by itself, aborted or turned away."""

    at: float
    rid: str
    reason: EndReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


EngineEvent = Started | Retracted | Ended


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """What the server says of its load: taken after a prefill step, every 15 decode steps, and when idle."""

    at: float
    running: int
    waiting: int
    waiting_uncached_tokens: int
    used_tokens: int
    total_tokens: int  # used, and the whole length of all that waits: may exceed the pool
    available_tokens: int
    evictable_tokens: int
    prefill_tokens_total: int
    prefill_busy_seconds_total: float
    new_token_ratio: float
    retractions_total: int
    cache_hit_rate: float
    decode_tokens_per_second: float


class PromptTooLong(Exception):
    """More prompt than the server can ever take. `limit` is the pool's when `of_pool`, else the context's."""

    def __init__(self, tokens: int, limit: int, *, of_pool: bool) -> None:
        super().__init__(f"prompt of {tokens} tokens, at most {limit} fit")
        self.tokens = tokens
        self.limit = limit
        self.of_pool = of_pool


class DuplicateRid(Exception):
    """A live request has this id."""
