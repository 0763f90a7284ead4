"""What goes into the controller (events), what comes out (actions), and what both are made of.

Everything here is a plain value: no clock, no I/O. Times are seconds on the caller's
monotonic clock; tokens are KV-cache tokens unless a name says otherwise.
"""

from dataclasses import dataclass
from enum import StrEnum

from proxy.admission.limits import Limits


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


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    request: Request


@dataclass(frozen=True, slots=True)
class Gone:
    """The client left, or the shell gave the request up, before its end.

    `reached_engine`: False when nothing was sent, so that there is nothing to drain.
    """

    rid: str
    reached_engine: bool = True


@dataclass(frozen=True, slots=True)
class FirstToken:
    rid: str
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sliceable:
    """The exact ids of a sliceable request are at hand, so many; None: there will be none."""

    rid: str
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class SliceDone:
    """A slice's answer: the engine had `cached_tokens` of it; None: it failed."""

    rid: str
    end_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Output tokens so far of running requests, as the streams showed them."""

    generated_tokens: dict[str, int]


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine let go of the request: it ended by itself, failed, or an abort was confirmed."""

    rid: str
    prompt_tokens: int | None = None  # from the server's usage
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    completed: bool = True  # False: an error or an abort; its output teaches nothing


@dataclass(frozen=True, slots=True)
class Requeue:
    """The engine answered with back-pressure (503 queue full, 429): nothing ran there."""

    rid: str


@dataclass(frozen=True, slots=True)
class PoolUp:
    pool: str
    facts: PoolFacts


@dataclass(frozen=True, slots=True)
class PoolDown:
    pool: str


@dataclass(frozen=True, slots=True)
class PoolLeaving:
    """It takes nothing new: what is queued for it goes elsewhere, what runs there ends there.

    `stays`: it does not leave after all.
    """

    pool: str
    stays: bool = False


@dataclass(frozen=True, slots=True)
class PoolGone:
    """It has been taken away for good; what still runs there is over."""

    pool: str


@dataclass(frozen=True, slots=True)
class NewLimits:
    """The operator's limits have changed. They count from the next decision on."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Load:
    pool: str
    sample: LoadSample


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: deadlines, the gate, draining charges."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Shutting down: refuse the queued and all that arrives."""


Event = (
    Arrival
    | Sliceable
    | SliceDone
    | Gone
    | FirstToken
    | Progress
    | Finished
    | Requeue
    | PoolUp
    | PoolDown
    | PoolLeaving
    | PoolGone
    | NewLimits
    | Load
    | Tick
    | Drain
)


# --- actions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send it now to this pool."""

    rid: str
    pool: str
    lane: Lane
    waited_seconds: float
    rule: str  # "fit", or the backfill rule that let it pass a blocked head; "shadow", "off"
    #: in shadow mode: what enforcing would have done ("admit", "queue", "refuse")
    verdict: str = ""
    predicted_wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Get the exact ids of this sliceable request; answer with `Sliceable`. Its turn is near."""

    rid: str
    pool: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Have this pool prefill the first `end_tokens` ids of the request; answer with `SliceDone`.

    The first slice is the request's start: its waiting ends here, its `Dispatch` comes when the
    rest of its prompt is small.
    """

    rid: str
    pool: str
    end_tokens: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the client now; nothing was sent.

    `retry_after_seconds` is honest and may exceed what fits the header; None: retrying is useless.
    """

    rid: str
    reason: Reason
    lane: Lane
    predicted_wait_seconds: float
    retry_after_seconds: float | None
    needed_tokens: int
    free_tokens: int
    queue_position: int
    limit_tokens: int | None = None
    tenant_limit: TenantLimit | None = None


Action = Dispatch | Tokenize | Slice | Refuse
