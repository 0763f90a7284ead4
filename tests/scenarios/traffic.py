"""Machines, loads and a look over the controller's shoulder, for scenarios on the simulated engine."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from proxy.admission.controller import Controller
from proxy.admission.types import Action, Event
from proxy.simulator.conditions import Conditions
from proxy.simulator.jobs import EngineConfig
from proxy.simulator.mixes import STORY_POOL_TOKENS
from proxy.simulator.pace import PACES, Pace
from proxy.simulator.records import Run
from proxy.simulator.workload import Client, Turn, Workload, fixed

TICK_SECONDS = 0.25


def machine(pool_tokens: int) -> EngineConfig:
    """An H200 whose speed grows with the pool: filling that takes 20 s, whatever its size.

    Reading a prompt costs what reading its ids does, since most long requests bring them.
    """
    factor = pool_tokens / STORY_POOL_TOKENS
    h200 = PACES["h200-8b"]
    pace = Pace(
        h200.prefill_token_seconds / factor,
        h200.prefill_depth_seconds / factor**2,
        h200.decode_step_seconds,
        h200.decode_token_seconds / factor,
    )
    return EngineConfig(
        pool_tokens=pool_tokens,
        tokenize_token_seconds=Conditions().slice_token_seconds / factor,
        pace=pace,
    )


def around(pool_tokens: int) -> Conditions:
    """Such a machine's server reads and tokenizes that much faster, too."""
    factor = pool_tokens / STORY_POOL_TOKENS
    usual = Conditions()
    return Conditions(
        ids_token_seconds=usual.ids_token_seconds / factor,
        slice_token_seconds=usual.slice_token_seconds / factor,
    )


def scaled(tokens: int, pool_tokens: int) -> int:
    """What of that pool `tokens` are of the pool of the story."""
    return round(tokens * pool_tokens / STORY_POOL_TOKENS)


class Watched:
    """A controller in a replay; every `look` is told the time before the controller hears an event."""

    def __init__(self, controller: Controller, *looks: Callable[[float], None]) -> None:
        self._controller = controller
        self._looks = looks

    def step(self, now: float, event: Event) -> Sequence[Action]:
        for look in self._looks:
            look(now)
        return self._controller.step(now, event)

    def next_wakeup(self, now: float) -> float | None:
        return self._controller.next_wakeup(now)


@dataclass(slots=True)
class HeadWait:
    """One long request at the head of its lane; `before` is what had a place when the gate closed for it."""

    arrived_at: float
    head_at: float
    before: frozenset[str] | None = None

    def latest_start(self, run: Run, max_bypass_seconds: float) -> float:
        """A after it arrived, and once D is over: the drain of what ran when the gate closed."""
        ends = [record.ended_at or inf for record in run.records if record.rid in (self.before or ())]
        return max(self.arrived_at + max_bypass_seconds, self.head_at, *ends) + TICK_SECONDS


class Heads:
    """Follows the heads of the long lanes through a replay."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.waits: dict[str, HeadWait] = {}

    def look(self, now: float) -> None:
        """Note who is the head, and whether the gate is closed for it, or should be."""
        for line in self._controller.lines.values():
            head = line.longs.head()
            if head is None:
                continue
            wait = self.waits.setdefault(head.rid, HeadWait(head.arrived_at, now))
            old = now > wait.arrived_at + line.pool.limits.max_bypass_seconds
            if wait.before is None and (old or line.gate.closed(now)):
                wait.before = frozenset(line.pool.jobs)


def steady(
    kind: str,
    each_seconds: float,
    until: float,
    prompt_tokens: int,
    output_tokens: int,
    *,
    seed: int,
    starts_at: float = 0.0,
    tenant: str = "default",
    wait_limit_seconds: float = 600.0,
    direct: bool = False,
) -> Workload:
    """One request every `each_seconds`, give or take a fifth."""
    rng = random.Random(f"{kind} {seed}")
    clients: list[Client] = []
    at = starts_at + each_seconds * rng.random()
    while at < until:
        name = f"{kind} {seed} {len(clients)}"
        ask = fixed(kind, name, prompt_tokens, output_tokens)
        ask = replace(ask, tenant=tenant, wait_limit_seconds=wait_limit_seconds)
        clients.append(Client(name, (Turn(ask),), at, direct=direct))
        at += each_seconds * rng.uniform(0.8, 1.2)
    return Workload(kind, tuple(clients))
