"""Watches an engine's own figures while a load runs."""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Self

from tests.load.http1 import BadAnswer, get

SAMPLE_SECONDS = 0.1
CANCEL_SECONDS = 1.0
LOADS_PATH = "/v1/loads?include=core"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. Seconds since the load began: `at`, when it was asked for, and `told_at`, when the
    engine's scheduler wrote it down.
    """

    at: float
    told_at: float
    running: int
    waiting: int
    used_tokens: int
    prefill_backlog_tokens: int


async def read_sample(base_url: str, began: float) -> Sample:
    """Asks the engine once. Raises OSError or BadAnswer where it does not answer."""
    at = time.monotonic() - began
    status, body = await get(base_url + LOADS_PATH)
    if status != 200:
        raise BadAnswer(f"{LOADS_PATH} answered {status}")
    (load,) = json.loads(body)["loads"]
    return Sample(
        at=at,
        told_at=load["timestamp"] - (time.time() - time.monotonic()) - began,
        running=load["num_running_reqs"],
        waiting=load["num_waiting_reqs"],
        used_tokens=load["num_used_tokens"],
        prefill_backlog_tokens=load["num_waiting_uncached_tokens"],
    )


class Sampler:
    """Samples every `seconds` for as long as its block runs; `missed` counts readings that failed."""

    def __init__(self, base_url: str, *, began: float, seconds: float = SAMPLE_SECONDS) -> None:
        self.samples: list[Sample] = []
        self.missed = 0
        self._base_url = base_url
        self._began = began
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        await end_task(self._task)

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + self._seconds
            try:
                self.samples.append(await read_sample(self._base_url, self._began))
            except (OSError, BadAnswer):
                self.missed += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task that runs for ever. Raises what it had died of, if it had.

    Once may not be enough: Python 3.11's `wait_for` loses a cancellation that comes with its result.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not task.cancelled():
        task.result()


async def retractions(base_url: str) -> int:
    """How often the engine has thrown running requests back since it started."""
    _, body = await get(base_url + "/metrics")
    found = re.findall(rb"^sglang:num_retracted_requests_total(?:\{.*\})? (\S+)$", body, re.MULTILINE)
    return int(sum(float(value) for value in found))
