"""What a scenario is made of: a load, the server it meets, the ways to play it, and what must hold."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tests.load.figures import Row, Run
from tests.load.workload import Workload
from tests.sglang.shim.pacing import Pace, configured

STORY_POOL_TOKENS = 186_624

Runs = Mapping[str, Run]  # by the names of the ways
Settings = Callable[[Runs], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Engine:
    """The server under load: pool in tokens, pace preset and what divides its times, queue order, SGLang's
    own flags.
    """

    pool: int = STORY_POOL_TOKENS
    pace: str | None = "h200-8b"
    speedup: float = 4.0
    policy: str = "fcfs"
    flags: tuple[str, ...] = ()


def pace_of(engine: Engine) -> Pace:
    """Its pace as the server will have it; no pace takes no time."""
    environ = {"SGLANG_CPU_PACE": engine.pace or "0,0,0,0", "SGLANG_CPU_SPEEDUP": str(engine.speedup)}
    pace = configured(environ)
    assert pace is not None
    return pace


@dataclass(frozen=True, slots=True)
class Mix:
    """What a load is drawn from: `scale` 1 is the full size, smaller is shorter and lighter (for tests);
    `lengths` multiplies the long prompts.
    """

    seed: int = 1
    scale: float = 1.0
    lengths: float = 1.0

    def draw(self) -> random.Random:
        return random.Random(self.seed)

    def long(self, tokens: int) -> int:
        return round(tokens * self.lengths)


@dataclass(frozen=True, slots=True)
class Way:
    """One manner of playing a scenario. `policy` and `flags` change its engine; `build`, given what was
    measured before, its load; `change` what is asked.
    """

    name: str
    proxied: bool = False
    policy: str | None = None
    flags: tuple[str, ...] = ()
    build: Callable[[Mix, Runs], Workload] | None = None
    change: Callable[[Workload], Workload] = lambda workload: workload

    @property
    def slug(self) -> str:
        """Its name in names of files."""
        return self.name.replace(", ", "-").replace(" ", "-")

    def engine(self, usual: Engine) -> Engine:
        """The server it is played on."""
        return replace(usual, policy=self.policy or usual.policy, flags=(*usual.flags, *self.flags))


DIRECT = Way("direct")
PROXIED = Way("proxied", proxied=True)


def patient(_: Runs) -> Mapping[str, str]:
    """Nobody is refused: what is measured is the order."""
    return {"PROXY_MAX_QUEUE_SECONDS": "600"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`build` makes the load, `judge` the table out of the runs of all `ways`.

    `settings` makes the proxy's environment; it is given the runs before, since a promise can only be
    set against what was measured. `decisions`: the proxy's decision log is kept with its runs.
    """

    name: str
    summary: str
    build: Callable[[Mix], Workload]
    judge: Callable[[Runs], list[Row]]
    engine: Engine = field(default_factory=Engine)
    settings: Settings = patient
    ways: tuple[Way, ...] = (DIRECT, PROXIED)
    decisions: bool = False

    def workload(self, way: Way, mix: Mix, runs: Runs) -> Workload:
        """What is asked that way."""
        built = self.build(mix) if way.build is None else way.build(mix, runs)
        return way.change(built)
