"""An engine beside the one that streams, which takes bodies of any size and forgets them at once.

    python -m tests.tokens.bench_sink PORT POOL_TOKENS

An engine that keeps long bodies stalls for tens of milliseconds, and its streams with it.
"""

import asyncio
import sys
from typing import Any

import uvloop

from tests.bench.stand_in_engine import Session, State

MODEL = "sink"


class Sink(Session):
    """Answers every chat with a few words, whatever it was."""

    def on_body(self, body: bytes) -> None:
        return

    def _facts(self, path: str) -> dict[str, Any] | None:
        facts = super()._facts(path)
        if facts is not None and "served_model_name" in facts:
            facts["served_model_name"] = MODEL
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": MODEL, "max_model_len": 1_048_576}]}
        return facts


async def serve(port: int, pool_tokens: int) -> None:
    """Until it is killed."""
    state = State(pool_tokens)
    server = await asyncio.get_running_loop().create_server(lambda: Sink(state), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
