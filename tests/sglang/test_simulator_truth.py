"""The simulator held to the truth: one seeded load on the real scheduler and on its model.

A server at true speed, so that the times are those of its steps and not of two CPU cores. What these
add to a step all the same is measured just before, on the same server; the rest is predicted in virtual
time.
"""

import random
from collections.abc import Iterator, Sequence

import pytest

from proxy.simulator.jobs import EngineConfig
from proxy.simulator.pace import pace_of
from proxy.simulator.records import Run as Predicted
from proxy.simulator.virtual import replay
from tests.load.figures import Run, aligned, quantile
from tests.load.probe import BusySeconds, Overhead, measure
from tests.load.runs import run_direct
from tests.load.simulated import simulated
from tests.load.workload import Ask, Client, Said, Workload, poisson_times
from tests.sglang.server import CHUNK_TOKENS, SGLangServer

PACE = "h200-8b"
POOL_TOKENS = 112_000
TTFT_OFF_MAX, TOTAL_OFF_MAX, HITS_OFF_MAX = 0.15, 0.10, 0.15
ATTEMPTS, QUIET = 3, 0.1
FEW_TOKENS = 1_000  # what all prompts have in common anyway: the chat template's first


def mixed() -> Workload:
    """Shorts among long prompts and a giant that nearly fills the pool: what blocks whom, and how long."""
    draw = random.Random(1)
    clients = [
        Client(at, (Ask("short", draw.randint(150, 450), 100, draw.getrandbits(32)),))
        for at in poisson_times(draw, 3.0, 16.0)
    ]
    longs = [Ask("long", 38_000, 200, draw.getrandbits(32)) for _ in range(4)]
    clients += [Client(0.1 * number, (ask,)) for number, ask in enumerate(longs)]
    clients.append(Client(2.0, (Ask("giant", 90_000, 100, draw.getrandbits(32)),)))
    return Workload(tuple(clients))


def conversations() -> Workload:
    """Five, whose every turn finds in the cache what was said before."""
    clients = []
    for number in range(5):
        said: tuple[Said, ...] = ()
        asks, prompt_tokens = [], 0
        for turn in range(4):
            fresh, seed = (5_000 if turn else 6_000), 100 * number + turn
            prompt_tokens += fresh
            asks.append(Ask("turn" if turn else "first turn", prompt_tokens, 60, seed, said=said))
            said = (*said, Said(fresh, 60, seed))
            prompt_tokens += 60
        clients.append(Client(0.1 * number, tuple(asks), think_seconds=0.5))
    return Workload(tuple(clients))


LOADS = {"mixed": mixed(), "conversations": conversations()}


@pytest.fixture(scope="module")
def true_speed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    log_path = tmp_path_factory.mktemp("truth") / "sglang.log"
    with SGLangServer(pool=POOL_TOKENS, pace=PACE, log_path=log_path) as server:
        yield server


@pytest.mark.parametrize("name", LOADS)
def test_the_model_of_the_scheduler_takes_as_long_as_the_scheduler(
    name: str, true_speed: SGLangServer
) -> None:
    """Twice wrong on a quiet machine is wrong. On a busy one the others would be what is compared."""
    wrong: list[str] = []
    for _ in range(ATTEMPTS):
        overhead = measure(true_speed, pace_of(PACE))
        before = BusySeconds.now()
        measured = run_direct(true_speed, LOADS[name])
        elsewhere = before.share_elsewhere(sum(measured.cpu_seconds.values()))
        predicted = replay(simulated(LOADS[name], name), config_with(overhead))
        text, off = comparison(measured, predicted)
        text = f"{name}: {elsewhere:.0%} of the machine busy with something else; {overhead}\n{text}"
        print(f"\n{text}")
        if not off:
            return
        if elsewhere < QUIET:
            wrong.append(f"{', '.join(off)}\n{text}")
    if len(wrong) < 2:
        pytest.skip(f"the machine was busy with something else: {text}")
    pytest.fail(wrong[-1])


def config_with(overhead: Overhead) -> EngineConfig:
    """The server, as its model is told of it."""
    return EngineConfig(
        pool_tokens=POOL_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
        max_prefill_tokens=CHUNK_TOKENS,
        tokenize_token_seconds=overhead.tokenize_token_seconds,
        pace=overhead.added_to(pace_of(PACE)),
    )


def comparison(measured: Run, predicted: Predicted) -> tuple[str, list[str]]:
    """A table, and the figures in it that are too far off."""
    figures = [
        (
            f"{kind} TTFT p50",
            quantile(measured.ttfts(kind), 0.5),
            predicted.of(kind).p50_seconds,
            TTFT_OFF_MAX,
        )
        for kind in predicted.kinds()
    ]
    figures.append(("all done after", measured.duration_seconds, predicted.wall_seconds, TOTAL_OFF_MAX))
    hits = sum(outcome.cached_tokens or 0 for outcome in measured.outcomes)
    hits_of_model = sum(record.cached_tokens or 0 for record in predicted.records)
    if max(hits, hits_of_model) > FEW_TOKENS:
        figures.append(("prompt tokens cached", hits, hits_of_model, HITS_OFF_MAX))
    lines: list[Sequence[str]] = [("figure", "real", "model", "off", "at most")]
    for name, real, model, most in figures:
        lines.append((name, f"{real:.3f}", f"{model:.3f}", f"{model / real - 1:+.1%}", f"{most:.0%}"))
    return aligned(lines), [name for name, real, model, most in figures if abs(model / real - 1) > most]
