"""What large bodies leave in the heap: with blocks that go back to the system, and without.

    python -m tests.bench.heap                 # half a minute

Eight rounds of bodies from 3 KB to 1 MB, all of them different, through a proxy of its own each time;
megabytes of it after each round, at rest.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.bench.meters import machine, resident_bytes
from tests.bench.overhead import POOL_TOKENS
from tests.bench.tools import Tools, build, engine_server
from tests.load.process import ServerProcess, free_port
from tests.load.proxy import REPOSITORY

ROUNDS = 8
BODY_BYTES = (4_000, 80_000, 300_000, 900_000)
CONNECTIONS = 12
REST_SECONDS = 0.5
WITHOUT = (
    "import proxy.serve as s, proxy.cli as c; s.give_large_blocks_back = lambda: False; c.main(['serve'])"
)
PROXIES = {"as it is": ("-m", "proxy", "serve"), "without": ("-c", WITHOUT)}


def megabytes(tools: Tools, command: tuple[str, ...], folder: Path) -> list[float]:
    """Resident after each round."""
    engine = engine_server(tools.engine, folder / "engine.log", pool_tokens=POOL_TOKENS, say=lambda _: None)
    port = free_port()
    proxy = ServerProcess(
        "proxy",
        [sys.executable, *command],
        port=port,
        env={"PROXY_BACKENDS": engine.base_url, "PROXY_PORT": str(port)},
        log_path=folder / "proxy.log",
        ready_path="/ready",
        ready_seconds=60,
        cwd=REPOSITORY,
        say=lambda _: None,
    )
    found, seed = [], 0
    with engine, proxy:
        for _ in range(ROUNDS):
            for size in BODY_BYTES:
                seed += 1000
                tools.load("requests", port, connections=CONNECTIONS, seconds=0.2, bytes=size, seed=seed)
            time.sleep(REST_SECONDS)
            found.append(resident_bytes(proxy.pid) / 2**20)
    return found


def main() -> int:
    """Prints both; returns 0."""
    tools = build(REPOSITORY / ".cache" / "bench")
    with tempfile.TemporaryDirectory() as name:
        for title, command in PROXIES.items():
            found = megabytes(tools, command, Path(name))
            print(f"{title:10} {' '.join(f'{each:5.0f}' for each in found)} MB", flush=True)
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
