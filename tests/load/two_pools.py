"""Two servers of different size: do 300K prompts keep to the large one, and do shorts notice them?

    python -m tests.load.two_pools

Simulated servers of 186,624 and 1,000,000 tokens, each a process; the same shorts twice, first alone,
then with prompts of 100K and 300K among them. Exit code 0 when what is required holds.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.load.client import make_bodies, play
from tests.load.figures import Row, all_hold, inform, quantile, require, table
from tests.load.outcome import Outcome
from tests.load.process import Say, say_at_once
from tests.load.proxy import REPOSITORY, ProxyServer
from tests.load.workload import Ask, Client, Workload, poisson_times
from tests.soak.engines import SimulatedServer

SMALL_TOKENS, LARGE_TOKENS = 186_624, 1_000_000
LONG_TIER_TOKENS = 60_000
HUGE_TOKENS = 300_000
SPEEDUP = 4.0
SHORTS_PER_SECOND = 4.0
LONG_EVERY_SECONDS = 10.0
SLACK_SECONDS = 0.05  # two cores carry two servers, the proxy and the clients
MOST_SLOWER = 1.1
SETTLE_SECONDS = 30.0


def shorts(seconds: float, seed: int) -> list[Client]:
    """Chats that come by chance."""
    draw = random.Random(seed)
    return [
        Client(at, (Ask("short", draw.randint(100, 1500), 60, draw.getrandbits(48)),))
        for at in poisson_times(draw, SHORTS_PER_SECOND, seconds)
    ]


def longs(seconds: float) -> list[Client]:
    """A prompt of 300K and one of 100K in turn, about as fast as the large server can compute them."""
    lengths = (HUGE_TOKENS, 100_000)
    count = round(seconds / LONG_EVERY_SECONDS)
    return [
        Client(1.0 + LONG_EVERY_SECONDS * n, (Ask("long", lengths[n % 2], 100, n),)) for n in range(count)
    ]


def two_pools(seconds: float, seed: int, folder: Path, say: Say) -> list[Row]:
    """Plays both loads on servers of its own; gives the table."""
    context = ("--context-tokens", "1048576")
    small = SimulatedServer(
        pool=SMALL_TOKENS, speedup=SPEEDUP, log_path=folder / "small.log", say=say, options=context
    )
    large = SimulatedServer(
        pool=LARGE_TOKENS, speedup=SPEEDUP, log_path=folder / "large.log", say=say, options=context
    )
    with small, large:
        alone, _ = _play(small, large, shorts(seconds, seed), folder / "alone", say)
        mixed, pools = _play(small, large, [*shorts(seconds, seed), *longs(seconds)], folder / "mixed", say)
    return _table(alone, mixed, pools)


def _play(
    small: SimulatedServer, large: SimulatedServer, clients: Sequence[Client], folder: Path, say: Say
) -> tuple[list[Outcome], dict[int, set[str]]]:
    """What came of it, and the pools by the length of the prompts that went there."""
    folder.mkdir()
    backends = [
        {"url": small.base_url, "name": "small"},
        {"url": large.base_url, "name": "large", "tier": "long"},
    ]
    log = folder / "decisions.jsonl"
    settings = {
        "PROXY_LONG_TIER_TOKENS": str(LONG_TIER_TOKENS),
        "PROXY_MAX_QUEUE_SECONDS": "600",
        "PROXY_DECISION_LOG": str(log),
    }
    workload = Workload(tuple(clients))
    bodies = make_bodies(workload, small.vocabulary, small.model)
    with ProxyServer(json.dumps(backends), settings, log_path=folder / "proxy.log", say=say) as proxy:
        time.sleep(1.0)  # until both are known
        outcomes = asyncio.run(play(proxy.base_url, workload, bodies, began=time.monotonic()))
        if any(left := proxy.settled_ledger(SETTLE_SECONDS).values()):
            raise RuntimeError(f"tokens were not given back: {left}")
    return outcomes, _pools([json.loads(line) for line in log.read_text().splitlines()])


def _pools(decisions: Sequence[dict[str, Any]]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for line in decisions:
        if line["event"] == "dispatch":
            found[line["prompt_tokens"]].add(line["pool"])
    return found


def _table(alone: Sequence[Outcome], mixed: Sequence[Outcome], pools: dict[int, set[str]]) -> list[Row]:
    long_pools = set().union(*(names for tokens, names in pools.items() if tokens >= LONG_TIER_TOKENS))
    before, after = (_ttfts(outcomes, "short") for outcomes in (alone, mixed))
    p99_before, p99_after = quantile(before, 0.99), quantile(after, 0.99)
    limit = MOST_SLOWER * p99_before + SLACK_SECONDS
    unserved = [outcome for outcome in (*alone, *mixed) if not outcome.served]
    times = _ttfts(mixed, "long")
    return [
        inform("shorts", f"{len(before)} alone", f"{len(after)} with {len(times)} long"),
        require("not served", "", str(len(unserved)), "0", not unserved),
        require(
            "prompts over the threshold ran on",
            "",
            ", ".join(sorted(long_pools)),
            "large",
            long_pools == {"large"},
        ),
        inform("short, p50", f"{quantile(before, 0.5):.3f} s", f"{quantile(after, 0.5):.3f} s"),
        require(
            "short, p99",
            f"{p99_before:.3f} s",
            f"{p99_after:.3f} s",
            f"<= {limit:.3f} s",
            p99_after <= limit,
        ),
        inform("long, worst", "", f"{times[-1]:.1f} s"),
    ]


def _ttfts(outcomes: Sequence[Outcome], kind: str) -> list[float]:
    return sorted(outcome.ttft_seconds for outcome in outcomes if outcome.kind == kind and outcome.served)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises what a broken server raises."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.load.two_pools",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=str(REPOSITORY / "out"), help="folder for logs")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.out) / f"two-pools-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    rows = two_pools(chosen.seconds, chosen.seed, folder, say_at_once)
    print(f"\n{table(rows)}\n\nlogs: {folder}", flush=True)
    return 0 if all_hold(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
