"""A gate over a real controller, on a clock that tests move."""

from dataclasses import dataclass, field
from typing import Any

from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.admission.types import LoadSample, PoolFacts, Request
from proxy.api.gate import Gate
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.snapshot import StateSnapshot

FACTS = PoolFacts(pool_tokens=20_000, max_running_requests=64, chunk_tokens=2048, models=("tiny",))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Setup:
    """`gate` with one pool `b` of 20,000 tokens that is up."""

    clock: Clock = field(default_factory=Clock)
    urged: list[str] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.metrics = Metrics(StateSnapshot)
        self.controller = Controller(self.limits)
        self.gate = Gate(self.controller, self.metrics, clock=self.clock, urge=self.urged.append)
        self.gate.pool_up("b", FACTS)

    def sample(self, **fields: Any) -> LoadSample:
        known: dict[str, Any] = {"at": self.clock.now, "used_tokens": 0, "running": 0, "waiting": 0}
        return LoadSample(**{**known, **fields})

    def is_empty(self) -> bool:
        """Nothing is charged, queued or open."""
        pool = self.controller.lines["b"].pool
        charges = (pool.committed_tokens, pool.backlog_tokens, pool.running_slots, pool.engine_tokens)
        return not (any(charges) or self.controller.jobs or self.gate.open_tickets)


def request(rid: str, prompt_tokens: int = 100, **fields: Any) -> Request:
    return Request(rid, prompt_tokens, **{"max_tokens": 100, "model": "tiny", **fields})
