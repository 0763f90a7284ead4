"""How long an answer may take to begin: a server can take a request, live on, and forget it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from proxy.admission.types import LoadSample
from proxy.upstream.call import Call
from proxy.upstream.load import is_idle

# Where the server's counters do not say how fast it prefills: a large model on old hardware.
SLOWEST_PREFILL_TOKENS_PER_SECOND = 500.0
# Deep prompts are slower than the mean, and share the server with others.
PREFILL_MARGIN = 4.0
_LEAST_BUSY_SECONDS = 1.0  # of prefilling, before a mean of it says anything


class Server(Protocol):
    """What waiting for an answer needs of the backend."""

    stall_seconds: float

    def latest(self, pool: str) -> LoadSample | None:
        """The newest load sample of a pool."""


class Patience:
    """Calls `give_up` with the reason when the answer to `call` should have begun; `end` stops that.

    Without streaming an answer begins when all of it has been generated, and a server may queue
    what the proxy did not order: as long as the reported load explains the silence, it goes on.
    """

    def __init__(self, call: Call, server: Server, give_up: Callable[[str], None]) -> None:
        self._pool = call.pool
        self._stream = call.stream
        self._server = server
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        seconds = server.stall_seconds + prefill_seconds(call.prompt_tokens, server.latest(call.pool))
        self._timer = self._loop.call_later(seconds, self._look)

    def end(self) -> None:
        """The answer has begun, or nobody waits for it any more."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._may_still_come():
            self._timer = self._loop.call_later(self._server.stall_seconds, self._look)
        else:
            self._give_up(f"no answer within {self._loop.time() - self._began:.0f} s")

    def _may_still_come(self) -> bool:
        sample = self._server.latest(self._pool)
        if sample is None:
            return not self._stream
        return bool(sample.waiting) if self._stream else not is_idle(sample)


def prefill_seconds(prompt_tokens: int, sample: LoadSample | None) -> float:
    """The longest that a prefill of so many tokens may take, by the mean pace that a sample tells."""
    pace = SLOWEST_PREFILL_TOKENS_PER_SECOND
    if sample is not None:
        total, busy = sample.prefill_tokens_total, sample.prefill_busy_seconds_total
        if total and busy is not None and busy >= _LEAST_BUSY_SECONDS:
            pace = total / busy
    return PREFILL_MARGIN * prompt_tokens / pace
