"""Mixed load with random faults on a real SGLang, for as long as you like; at the end a verdict.

    python -m tests.soak --minutes 30
    python -m tests.soak --minutes 2 --simulated       # no SGLang, for a quick look

Short, long and giant prompts, bursts, clients that leave, slow readers, bad requests, a server that is
killed and restarted, settings read again. Exit code 0 when every required figure holds, else 1.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.load.figures import all_hold, table
from tests.load.process import say_at_once
from tests.load.scenario import STORY_POOL_TOKENS
from tests.soak.engines import engine, options
from tests.soak.run import soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises what a broken server or install raises."""
    parser = options("tests.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.out) / f"soak-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    print(f"logs: {folder}", flush=True)
    server = engine(
        simulated=chosen.simulated,
        pool=STORY_POOL_TOKENS,
        speedup=chosen.speedup,
        folder=folder,
        say=say_at_once,
    )
    with server:
        rows = soak(server, 60 * chosen.minutes, folder, chosen.seed, say_at_once)
    print(f"\n{table(rows)}\n", flush=True)
    return 0 if all_hold(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
