"""What comes out of the controller: what has to be done now."""

from dataclasses import dataclass

from proxy.admission.values import Lane, Reason, TenantLimit


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
