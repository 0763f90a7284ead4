"""The curves that defaults were chosen by, in virtual time. The figures in docs/algorithm.md are these.

python -m tests.scenarios.curves                 # agents, returns, choice: two minutes
python -m tests.scenarios.curves agents
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from proxy.admission import residency
from proxy.admission.controller import Controller
from proxy.admission.limits import Limits
from proxy.simulator.jobs import Policy
from proxy.simulator.mixes import agents
from proxy.simulator.records import Run, quantile
from proxy.simulator.virtual import replay
from tests.admission.test_fleet import losses
from tests.scenarios.hand import POOL_TOKENS
from tests.scenarios.policies import Make, PromisesMelt
from tests.scenarios.test_agents import CONDITIONS, MACHINE, SECONDS, done, serve
from tests.scenarios.test_refusals import MIDDLE, overload, served_of_those_back
from tests.scenarios.traffic import machine

SEEDS = (1, 2, 3)
QUANTA_SECONDS = (36.0, 40.0, 45.0, 60.0)
CROWDS = (((2000, 6000), 4.0), (MIDDLE, 1.3), ((30_000, 70_000), 0.3))


def agents_by_quantum() -> None:
    """Twenty agents for 300 s: turns done, agents that finished one, by how long a context may stay."""
    for seconds in QUANTA_SECONDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(residency, "QUANTUM_SECONDS", seconds)
            patch.setattr(residency, "QUANTUM_PREFILLS", 4.0)  # five are more than the shortest here
            runs = [serve(Controller, seed, keyed=keyed)[0] for seed in SEEDS for keyed in (True, False)]
        print(_agents(f"quantum {seconds:g} s", runs))
    for policy in (Policy.FCFS, Policy.LPM):
        engine = replace(MACHINE, policy=policy)
        runs = [replay(agents(20, seed=seed), engine, conditions=CONDITIONS) for seed in SEEDS]
        print(_agents(policy.value, runs))


def _agents(name: str, runs: Sequence[Run]) -> str:
    turns = [done(run) for run in runs]
    finished = [
        len({record.client for record in run.records if record.ended_at and record.ended_at <= SECONDS})
        for run in runs
    ]
    return f"  {name:14} turns {min(turns)}-{max(turns)}, agents {min(finished)}-{max(finished)} of 20"


def returns_after_overload() -> None:
    """Of those told to come back after a minute of three times the capacity: the share served then."""
    policies: dict[str, Make] = {"a queue of moments": Controller, "promises melt": PromisesMelt}
    for name, make in policies.items():
        shares = []
        for tokens, capacity in CROWDS:
            for seed in SEEDS:
                load = overload(tokens, capacity, seed)
                shares.append(fmean(served_of_those_back(replay(load, machine(POOL_TOKENS), make(Limits())))))
        print(f"  {name:20} {min(shares):.0%} to {max(shares):.0%}")


def choice_of_many() -> None:
    """What the choice among 64 pools loses of what lies between best and worst."""
    for queued in (5, 20, 50):
        found = losses(Controller, 64, queued)
        print(
            f"  {queued:3} queued each: mean {fmean(found):.3f}, p90 {quantile(found, 0.9):.3f}, "
            f"p99 {quantile(found, 0.99):.3f}"
        )


CURVES: dict[str, Callable[[], None]] = {
    "agents": agents_by_quantum,
    "returns": returns_after_overload,
    "choice": choice_of_many,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints them; returns 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.scenarios.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("curves", nargs="*", choices=[*CURVES, []], help="all by default")
    for name in parser.parse_args(arguments).curves or CURVES:
        print(f"{name}: {CURVES[name].__doc__}", flush=True)
        CURVES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
