"""What a real server adds, on this machine, to the step times it is paced with.

Measured from outside in a few seconds, just before a comparison: two cores that others use today are
not those of yesterday.
"""

import asyncio
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Self

from proxy.simulator.pace import Pace
from tests.load.client import make_bodies, play
from tests.load.http1 import get
from tests.load.outcome import Outcome
from tests.load.sampler import LOADS_PATH
from tests.load.workload import Ask, Client, Workload
from tests.sglang.server import CHUNK_TOKENS, MODEL_NAME, SGLangServer

CROWD = 12
SHORT_TOKENS, LONG_TOKENS = 300, 40_000
OUTPUT_TOKENS = 100
ROUNDS = 3  # of which the best counts: whatever else runs on the machine only adds


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds: a step, a request in it, a token of its context, a prompt token prefilled, and a prompt
    token tokenized before.
    """

    step_seconds: float = 0.0
    request_seconds: float = 0.0
    resident_token_seconds: float = 0.0
    prefill_token_seconds: float = 0.0
    tokenize_token_seconds: float = 0.0

    def added_to(self, pace: Pace) -> Pace:
        """The pace at which this machine really goes."""
        slower = pace.with_overhead(self.step_seconds, self.request_seconds, self.prefill_token_seconds)
        decode = pace.decode_token_seconds + self.resident_token_seconds
        return replace(slower, decode_token_seconds=decode)


@dataclass(frozen=True, slots=True)
class _Long:
    """One long prompt: its prefill steps, what came before and between them, and a decode step."""

    prefill_seconds: float
    other_seconds: float
    decode_seconds: float


def measure(server: SGLangServer, pace: Pace) -> Overhead:
    """Of an idle server that is paced so: one short stream, `CROWD` of them, and long prompts."""
    return asyncio.run(_measure(server, pace))


@dataclass(frozen=True, slots=True)
class BusySeconds:
    """What all processors of this machine have worked since it started, and when that was read."""

    seconds: float
    at: float

    @classmethod
    def now(cls) -> Self:
        user, nice, system, _idle, _waiting, *others = map(
            int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
        )
        ticks = user + nice + system + sum(others)
        return cls(ticks / os.sysconf("SC_CLK_TCK"), time.monotonic())

    def share_elsewhere(self, ours_seconds: float) -> float:
        """Of the machine, since then, what went to others than those that worked `ours_seconds`."""
        now = self.now()
        available = (now.at - self.at) * (os.cpu_count() or 1)
        return max(0.0, now.seconds - self.seconds - ours_seconds) / available


async def _measure(server: SGLangServer, pace: Pace) -> Overhead:
    await _decode_seconds(server, 1, seed=0)  # the first request of a server is slow
    alone = min([await _decode_seconds(server, 1, seed=100 + number) for number in range(ROUNDS)])
    crowd = min([await _decode_seconds(server, CROWD, seed=200 + CROWD * number) for number in range(ROUNDS)])
    longs = [await _long(server, 300 + number) for number in range(ROUNDS)]
    long = min(one.decode_seconds for one in longs)
    short_context = SHORT_TOKENS + OUTPUT_TOKENS // 2
    long_context = LONG_TOKENS + OUTPUT_TOKENS // 2
    over_one = alone - pace.decode(short_context, 0)
    over_crowd = crowd - pace.decode(CROWD * short_context, 0)
    over_long = long - pace.decode(long_context, 0)
    request = max(0.0, (over_crowd - over_one) / (CROWD - 1))
    resident = max(0.0, (over_long - over_one) / (long_context - short_context))
    step = max(0.0, over_one - request)
    paced = pace.prefill(LONG_TOKENS, 0) + -(-LONG_TOKENS // CHUNK_TOKENS) * (step + request)
    prefill = max(0.0, min(one.prefill_seconds for one in longs) - paced)
    tokenize = min(one.other_seconds for one in longs)
    return Overhead(step, request, resident, prefill / LONG_TOKENS, tokenize / LONG_TOKENS)


async def _decode_seconds(server: SGLangServer, requests: int, *, seed: int) -> float:
    """A step, with that many requests in each."""
    asks = [Ask("probe", SHORT_TOKENS, OUTPUT_TOKENS, seed + number) for number in range(requests)]
    outcomes = await _play(server, Workload(tuple(Client(0.0, (ask,)) for ask in asks)))
    return median(map(_step_seconds, outcomes))


async def _long(server: SGLangServer, seed: int) -> _Long:
    before = await _prefill_busy_seconds(server)
    ask = Ask("probe", LONG_TOKENS, OUTPUT_TOKENS, seed)
    (outcome,) = await _play(server, Workload((Client(0.0, (ask,)),)))
    busy = await _prefill_busy_seconds(server) - before
    return _Long(busy, max(0.0, outcome.ttft_seconds - busy), _step_seconds(outcome))


def _step_seconds(outcome: Outcome) -> float:
    assert outcome.ended_at is not None
    return (outcome.ended_at - outcome.started_at - outcome.ttft_seconds) / (OUTPUT_TOKENS - 1)


async def _prefill_busy_seconds(server: SGLangServer) -> float:
    _, body = await get(server.base_url + LOADS_PATH)
    (load,) = json.loads(body)["loads"]
    return float(load["total_prefill_busy_us"]) / 1e6


async def _play(server: SGLangServer, workload: Workload) -> list[Outcome]:
    bodies = make_bodies(workload, server.vocabulary, MODEL_NAME)
    outcomes = await play(server.base_url, workload, bodies, began=time.monotonic())
    if not all(outcome.served for outcome in outcomes):
        raise RuntimeError(f"a probe was not served: {outcomes}")
    return outcomes
