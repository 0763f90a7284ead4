"""Seeded workloads, as data: who sends what, when, and what comes next.

The same workload is replayed in virtual time (`virtual`) or sent over real sockets (`load`).
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from proxy.admission.types import Segment

# A segment of a prompt's prefix closes at this many tokens, as the counting room closes them.
SEGMENT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `spans` are its prompt's pieces, `(key, tokens)`; equal keys in front are shared.

    `output_tokens` is where the model would end by itself. `min_tokens` makes a real server do the same.
    """

    kind: str
    spans: tuple[tuple[str, int], ...]
    output_tokens: int
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    output_key: str = ""  # what a later turn calls this one's output
    tenant: str = "default"
    session: str = ""
    wait_limit_seconds: float = 600.0
    leaves_after_seconds: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.spans)

    def segments(self) -> tuple[Segment, ...]:
        """What admission may know of the prefix; the last piece that closes no segment stays private."""
        digest = hashlib.blake2b(digest_size=16)
        closed: list[Segment] = []
        pending = 0
        for key, tokens in self.spans:
            digest.update(f"{key}\0{tokens}\0".encode())
            pending += tokens
            if pending >= SEGMENT_TOKENS:
                closed.append(Segment(digest.digest(), pending))
                pending = 0
        return tuple(closed)


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and the pause before it, counted from the end of the turn before."""

    ask: Ask
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Client:
    """Sends its turns one after the other. Refused, it comes back after Retry-After, at most `retries` times.

    `direct`: it goes around the proxy (foreign traffic).
    """

    name: str
    turns: tuple[Turn, ...]
    starts_at: float = 0.0
    retries: int = 0
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    clients: tuple[Client, ...]

    def __add__(self, other: "Workload") -> "Workload":
        return Workload(f"{self.name} + {other.name}", self.clients + other.clients)

    @property
    def requests(self) -> int:
        return sum(len(client.turns) for client in self.clients)

    def with_retries(self, retries: int) -> "Workload":
        """The same clients, obeying Retry-After that often."""
        return replace(self, clients=tuple(replace(client, retries=retries) for client in self.clients))

    def with_wait_limit(self, seconds: float) -> "Workload":
        """The same requests, none willing to wait longer."""
        return self.map(lambda ask: replace(ask, wait_limit_seconds=seconds))

    def map(self, change: Callable[[Ask], Ask]) -> "Workload":
        """The same clients with every request changed."""

        def changed(turns: Iterable[Turn]) -> tuple[Turn, ...]:
            return tuple(replace(turn, ask=change(turn.ask)) for turn in turns)

        clients = (replace(client, turns=changed(client.turns)) for client in self.clients)
        return replace(self, clients=tuple(clients))


def fixed(kind: str, key: str, tokens: int, output_tokens: int) -> Ask:
    """A request with a prompt of its own and exactly that much output (`ignore_eos`)."""
    return Ask(
        kind,
        ((key, tokens),),
        output_tokens,
        max_tokens=output_tokens,
        ignore_eos=True,
        output_key=f"{key} output",
    )


def ending_by_eos(kind: str, key: str, tokens: int, output_tokens: int, max_tokens: int | None = None) -> Ask:
    """A request that ends by itself after `output_tokens`, which nobody in front of the engine can know."""
    return Ask(
        kind,
        ((key, tokens),),
        output_tokens,
        max_tokens=max_tokens,
        min_tokens=output_tokens,
        output_key=f"{key} output",
    )
