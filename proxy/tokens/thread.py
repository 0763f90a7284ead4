"""The one thread in which large bodies are read and counted."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from proxy.tokens.breath import start_breathing

Result = TypeVar("Result")


class CountingThread:
    """Runs jobs one after the other, and knows how many bytes still wait to be counted.

    One thread is as good as two: what takes long releases the GIL, and the event loop has the other core.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="token-counter")
        self._lock = threading.Lock()
        self.backlog_bytes = 0

    async def run(self, charge_bytes: int, job: Callable[[], Result]) -> Result:
        """The result of `job`. `charge_bytes` stands in the backlog until it is done or cancelled."""
        self._add(charge_bytes)
        future = self._executor.submit(_undisturbed, job)

        def done(_: Future[Result]) -> None:
            self._add(-charge_bytes)

        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    def _add(self, size_bytes: int) -> None:
        with self._lock:
            self.backlog_bytes += size_bytes

    def close(self) -> None:
        """Takes no more jobs; those that still wait are cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _undisturbed(job: Callable[[], Result]) -> Result:
    start_breathing()
    with _collector_paused():
        return job()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """The jobs make no cycles, but a million new objects would set off full collections, each of
    which stops the event loop for as long as it takes to visit them all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
