"""Scenario 20 by the clock: how long does a step take with 10,000 queued on 64 pools?

    python -m tests.scenarios.bench_step [queued] [steps]

Prints microseconds a step by event. The machine should have nothing else to do.
"""

import gc
import sys
from time import perf_counter_ns

from proxy.simulator.records import quantile
from tests.scenarios.fleet_queue import CrowdedFleet

POOLS = 64
GOAL_MICROSECONDS = 100.0


def measure(queued: int, steps: int) -> dict[str, list[float]]:
    """Microseconds of each step, by the kind of event, and of all."""
    fleet = CrowdedFleet(queued, pools=POOLS)
    gc.collect()
    gc.freeze()
    took: dict[str, list[float]] = {"all": []}
    for event in fleet.life(steps):
        begun = perf_counter_ns()
        fleet.step(event)
        microseconds = (perf_counter_ns() - begun) / 1000
        took["all"].append(microseconds)
        took.setdefault(type(event).__name__, []).append(microseconds)
    return took


def main() -> int:
    """Exit status 1 when the p99 of all steps misses the goal."""
    queued = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
    took = measure(queued, steps)
    print(f"{queued} queued, {POOLS} pools, {steps} steps; microseconds a step")
    print(f"{'':12} {'number':>8} {'p50':>8} {'p99':>8} {'longest':>9}")
    for kind, values in took.items():
        p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
        print(f"{kind:12} {len(values):8} {p50:8.1f} {p99:8.1f} {max(values):9.1f}")
    reached = quantile(took["all"], 0.99) <= GOAL_MICROSECONDS
    print(f"goal: p99 of all at most {GOAL_MICROSECONDS:.0f}: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
