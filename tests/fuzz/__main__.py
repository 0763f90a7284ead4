"""Bad requests by the ten thousand against the proxy process, before a server that takes anything.

    python -m tests.fuzz --requests 50000 --seed 1
    python -m tests.fuzz --seed 1 --only 4711         # that one again, and shown

A request is made of its seed and its number alone. Exit code 0 when the proxy never answered 500,
never ended, answered whatever was well framed, and gave all back: tokens, sockets, memory.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.mutate import case
from tests.fuzz.run import SHOWN_PROBLEMS, fuzz
from tests.load.process import say_at_once


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this request alone, and its bytes")
    chosen = parser.parse_args(arguments)
    numbers = range(chosen.requests) if chosen.only is None else range(chosen.only, chosen.only + 1)
    if chosen.only is not None:
        print(repr(case(chosen.seed, chosen.only))[:5000], flush=True)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    verdict = asyncio.run(fuzz(numbers, chosen.seed, folder, say_at_once))
    print("\n".join(verdict.problems[:SHOWN_PROBLEMS]))
    counts = ", ".join(f"{status or 'none'}: {count:,}" for status, count in sorted(verdict.statuses.items()))
    print("the slowest: request {1} in {0:.1f} s".format(*verdict.slowest))
    print(f"answers: {counts}\n{len(verdict.problems)} problems (log: {folder})")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
