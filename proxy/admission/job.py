"""A request on its way through the controller: where it stands and what it is charged."""

from dataclasses import dataclass, field
from enum import StrEnum

from proxy.admission.residency import Conversation
from proxy.admission.types import Lane, Request, Segment

ENGINE_CLIP_TOKENS = 4096  # CLIP_MAX_NEW_TOKENS: what SGLang's scheduler counts of a future output


class State(StrEnum):
    QUEUED = "queued"
    SLICING = "slicing"  # admitted; its prompt goes to the engine in slices
    PREFILL = "prefill"  # sent, no token yet
    DECODE = "decode"
    DRAINING = "draining"  # the client is gone, the engine has not let go yet


@dataclass(slots=True)
class Job:
    """Mutable state of one request. Token charges are zero unless it holds a place in a pool."""

    request: Request
    arrived_at: float
    deadline_at: float
    lane: Lane
    prompt_tokens: int  # as counted, or exactly once its ids are known; never more than its pool takes
    state: State = State.QUEUED
    pool: str = ""
    predicted_wait_seconds: float = 0.0
    dispatched_at: float = 0.0
    first_token_at: float = 0.0
    drain_until: float = 0.0
    conversation: Conversation | None = None
    goes_on: bool = False  # another turn of its conversation is expected to follow
    rule: str = "fit"
    # sliced prefill, in tokens from the start of the prompt
    ids_wanted: bool = False
    ids_tokens: int | None = None  # exact length, once known
    unsliceable: bool = False
    sliced_tokens: int = 0  # prefilled and confirmed
    slice_ends: list[int] = field(default_factory=list)  # in flight, in order
    slice_bases: dict[int, int] = field(default_factory=dict)  # by end: what was confirmed when it was sent
    slice_boost: int = 1  # how much larger the next may be, since the last was all cached
    # what a pool has of its prompt, as of one state of its ledgers
    looked_up_in: object = None
    looked_up_at: int = -1
    ready_tokens: int = 0  # resident with others or held
    idle_tokens: int = 0  # and then probably still in the engine's cache
    # what it holds in the pool's ledgers
    tail_tokens: int = 0  # prompt tokens outside the shared segments
    segments: tuple[Segment, ...] = ()  # those it takes part in
    paying: tuple[bool, ...] = field(default=())
    paid_tokens: int = 0  # of those it pays for
    taken_tokens: int = 0  # of what it pays for: held for it before, so that it is resident already
    reserve_tokens: int = 0  # of all its sequences
    uncached_tokens: int = 0  # W, until its first token
    engine_tokens: float = 0.0  # E
    generated_tokens: int = 0
    tenant_tokens: int = 0  # counted against its tenant's share
    claimed_tokens: int = 0  # counted against its tenant's own limits, from arrival to its end:
    metered_tokens: int = 0  # held at once, and used in a minute
    cached_tokens: int = 0  # what was believed to be in the engine's cache when it was sent
    prefill_done: bool = False
    predicted_prefill_seconds: float = 0.0
    charged_token_seconds: float = 0.0  # to its tenant, ahead of the truth
    charged_prefill_seconds: float = 0.0  # of that
    #: decode progress: (time, generated) at the last look
    seen_at: float = 0.0
    seen_tokens: int = 0

    @property
    def rid(self) -> str:
        return self.request.rid

    @property
    def slice_sent_tokens(self) -> int:
        """How far its slices reach, those in flight included."""
        return self.slice_ends[-1] if self.slice_ends else self.sliced_tokens

    @property
    def long(self) -> bool:
        return self.lane is not Lane.SHORT

    @property
    def resident_tokens(self) -> int:
        """Upper bound of what it occupies now: its whole prompt and what it has produced."""
        return self.prompt_tokens + self.generated_tokens

    def engine_output_tokens(self, ratio: float) -> float:
        """What the engine's own formula counts of its future output, all sequences together.

        Whole before the first token (that is how it is admitted), times `ratio` afterwards.
        """
        sequences = self.request.sequences
        most = self.request.max_tokens
        done = self.generated_tokens // sequences
        remaining = ENGINE_CLIP_TOKENS if most is None else max(0, most - done)
        clipped = min(remaining, ENGINE_CLIP_TOKENS) * sequences
        if self.state in (State.PREFILL, State.SLICING) or self.request.ignore_eos:
            return clipped
        return clipped * ratio

    def remaining_tokens(self) -> int:
        """Output tokens one sequence is still expected to produce."""
        sequences = self.request.sequences
        return max(1, (self.reserve_tokens - self.generated_tokens) // sequences)
