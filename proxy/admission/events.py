"""What goes into the controller: what has happened to a request or to a pool."""

from dataclasses import dataclass

from proxy.admission.limits import Limits
from proxy.admission.values import LoadSample, PoolFacts, Request


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
