"""What events and actions are made of: requests, pools' facts, readings of their load, and reasons.

Times are seconds on the caller's monotonic clock; tokens are KV-cache tokens unless a name says otherwise.
"""

from dataclasses import dataclass
from enum import StrEnum


class Lane(StrEnum):
    """By uncached prompt tokens, since that is the work that blocks others."""

    SHORT = "short"
    LONG = "long"
    GIANT = "giant"


class Reason(StrEnum):
    """Why a request was refused. The values are part of the contract (`x-admission-reason`)."""

    WOULD_MISS_DEADLINE = "would_miss_deadline"
    QUEUE_FULL = "queue_full"
    TENANT_LIMIT = "tenant_limit"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    DEADLINE = "deadline"
    NO_BACKEND = "no_backend"
    MODEL_NOT_FOUND = "model_not_found"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may have at once, over all pools, and in a minute; None: as much as there is."""

    concurrent_requests: int | None = None
    resident_tokens: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """The one of its limits that a tenant has reached: `used` of `most`."""

    name: str
    most: int
    used: int


UNLIMITED = TenantLimits()


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt's prefix: `key` identifies everything from the start up to its end."""

    key: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """What admission needs to know of a request; never its text.

    `max_tokens` is what the engine will be told (None: until EOS or the end of the context).
    `sequences` is n x batch items: each takes a running slot and its own output.
    `segments` are the leading pieces of the prompt that another request may share, in order;
    their tokens sum to at most `prompt_tokens`.
    `sliceable`: its exact ids can be had (`Tokenize`), so that its prefill can go in slices.
    `session` is the client's own name for the conversation, where it gave one.
    `uncertainty` is the share by which an estimated prompt may be over-counted; 0 when exact.
    `pinned_pool`: the only one that can serve it, since it has the history that the request goes on from.
    """

    rid: str
    prompt_tokens: int
    max_tokens: int | None = None
    sequences: int = 1
    model: str = ""
    tenant: str = "default"
    weight: float = 1.0
    limits: TenantLimits = UNLIMITED
    wait_limit_seconds: float = 60.0
    segments: tuple[Segment, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    uncertainty: float = 0.0
    sliceable: bool = False
    session: str = ""
    pinned_pool: str = ""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a backend says of one KV pool (one DP rank) at start and on reconnect.

    `tier` is what the operator says of it: `long` is set aside for long prompts.
    """

    pool_tokens: int
    max_request_tokens: int | None = None  # `max_req_input_len`: pool - 6 on SGLang
    context_tokens: int | None = None
    max_running_requests: int | None = None
    chunk_tokens: int = 8192  # `chunked_prefill_size`
    page_tokens: int = 1
    conservativeness: float = 1.0  # `schedule_conservativeness`: scales the engine's output reserve
    radix_cache: bool = True
    cache_report: bool = False
    models: tuple[str, ...] = ()
    vocab_tokens: int | None = None
    version: str = ""
    tier: str = "default"


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One reading of a pool's load. `at` is when the server took it, on the controller's clock."""

    at: float
    used_tokens: int
    running: int
    waiting: int
    waiting_uncached_tokens: int | None = None  # includes the rest of a prefill under way
    prefill_tokens_total: int | None = None
    prefill_busy_seconds_total: float | None = None
    new_token_ratio: float | None = None
    retractions_total: int | None = None
