"""The scheduler's own state, and what one step does to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from proxy.simulator.jobs import Ended, EndReason, EngineConfig, EngineEvent, Job, Policy, Retracted
from proxy.simulator.kv import KvPool
from proxy.simulator.prefill import Admission, PrefillBatch
from proxy.simulator.radix import RadixTree

# How SGLang's guess of unfinished output starts, how far it falls and in how many decode steps.
INITIAL_RATIO = 0.7
SMALLEST_RATIO = 0.14  # of the initial
DECAY_STEPS = 600
RETRACT_STEPS = 20
# Above this many waiting requests `lpm` gives up and is first come, first served.
LPM_MAX_WAITING = 128
# First come, first served, marks what the waiting would hit as used, once in so many passes over the queue.
REFRESH_PASSES = 32
# A waiting request this much like an earlier one waits for it, when the cache has next to nothing of it.
SAME_PREFIX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class PrefillStep:
    batch: PrefillBatch
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodeStep:
    requests: int
    tokens: int  # the sum of the lengths it attends to
    seconds: float


class Scheduler:
    """Queue, running batch, the request in chunked prefill, and the pool they share."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = KvPool(config.pool_tokens, radix_cache=config.radix_cache)
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.chunked: Job | None = None
        self.retractions = 0
        self._initial_ratio = min(INITIAL_RATIO * config.conservativeness, 1.0)
        self.ratio = self._initial_ratio
        self._full = False  # nothing is admitted before a running request leaves
        self._passes = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running or self.chunked)

    def next_step(self, now: float, events: list[EngineEvent]) -> PrefillStep | DecodeStep | None:
        """What runs next, its memory taken; None when idle. Retractions are added to `events`."""
        batch = self._admit()
        if batch is not None:
            pace = self.config.pace
            seconds = sum(pace.prefill(chunk.tokens, chunk.depth) for chunk in batch.chunks)
            return PrefillStep(batch, seconds + pace.overhead(len(batch.chunks)))
        if self.running:
            self._keep_what_fits(now, events)
        if not self.running:
            if not self.waiting:
                self.ratio = self._initial_ratio
            return None
        for job in self.running:
            self.kv.take(job, 1)
        return self._decode_step()

    def prefilled(self, step: PrefillStep) -> tuple[list[Job], list[Job]]:
        """A prefill step is over: who got a first token, and who already ended."""
        started: list[Job] = []
        ended: list[Job] = []
        for chunk in step.batch.chunks:
            job = chunk.job
            self.kv.store(job, chunk.depth + chunk.tokens)
            if not chunk.last:
                self._full = False
                continue
            if job.target > 0:
                if job.generated == 0:
                    started.append(job)
                job.generated += 1
            (ended if job.done else self.running).append(job)
        return started, self._let_go(ended)

    def decoded(self, step: DecodeStep) -> list[Job]:
        """A decode step is over: who ended by it."""
        assert step.requests == len(self.running)
        for job in self.running:
            job.generated += 1
        ended = [job for job in self.running if job.done or job.aborting]
        self.running = [job for job in self.running if not (job.done or job.aborting)]
        return self._let_go(ended)

    def quiet_decodes(self) -> int:
        """Decode steps, the one begun included, after which nothing has ended and the pool still holds."""
        if any(job.aborting for job in self.running):
            return 0
        to_first_end = min(job.target - job.generated for job in self.running)
        return max(0, min(to_first_end - 1, self.kv.free // len(self.running)))

    def leap(self, steps: int) -> DecodeStep:
        """Finish the decode step begun and those after it, `steps` in all, and begin the next."""
        for job in self.running:
            job.generated += steps
        self.kv.make_room(steps * len(self.running))
        for job in self.running:
            self.kv.take(job, steps)
        self._decay(steps)
        return self._decode_step()

    def abort(self, rid_prefix: str) -> list[Job]:
        """The waiting leave now and are returned; others end after a chunk or a decode step."""
        gone = [job for job in self.waiting if job.rid.startswith(rid_prefix)]
        if gone:
            self.waiting = [job for job in self.waiting if not job.rid.startswith(rid_prefix)]
        for job in self._in_flight():
            job.aborting = job.aborting or job.rid.startswith(rid_prefix)
        return gone

    def drop_aborted_chunk(self) -> list[Job]:
        """Between two chunks is where a request in prefill can be ended."""
        job = self.chunked
        if job is None or not job.aborting:
            return []
        self.chunked = None
        self.kv.release(job, keep=False)
        return [job]

    def waiting_uncached_tokens(self, hit_rate: float) -> int:
        """SGLang's estimate: policies that look at the cache know, `fcfs` goes by the recent hit rate."""
        if self.config.policy is Policy.FCFS:
            tokens = sum(int(job.length * (1 - hit_rate)) for job in self.waiting)
        else:
            tokens = sum(max(0, job.length - job.prefix) for job in self.waiting)
        return tokens + (self.chunked.length - self.chunked.prefix if self.chunked else 0)

    # --- admission -------------------------------------------------------------------------------

    def _admit(self) -> PrefillBatch | None:
        if not self.running:
            self._full = False
        if self.chunked is None and (self._full or not self.waiting):
            return None
        slots = self.config.max_running_requests - len(self.running)
        if self.chunked is None and slots <= 0:
            self._full = True
            return None
        self._order_queue()
        admission = Admission(self.config, self.kv, self.running, self.waiting, self.ratio)
        batch = admission.build(self.chunked, slots)
        self._full = batch.blocked and bool(batch.chunks or self.running)
        if not batch.chunks:
            return None
        admitted = {chunk.job for chunk in batch.chunks}
        self.waiting = [job for job in self.waiting if job not in admitted]
        self.chunked = next((chunk.job for chunk in batch.chunks if not chunk.last), None)
        for chunk in batch.chunks:
            self.kv.take(chunk.job, chunk.tokens)
        return batch

    def _order_queue(self) -> None:
        policy = self.config.policy
        if policy is Policy.FCFS or (policy is Policy.LPM and len(self.waiting) > LPM_MAX_WAITING):
            self._refresh_prefixes()
            return
        repeats = self._repeats()
        if policy is Policy.LPM:
            self.waiting.sort(key=lambda job: float("inf") if job in repeats else -job.prefix)
        else:
            self.waiting.sort(key=lambda job: (job in repeats, _work(job), job.entered_at))

    def _refresh_prefixes(self) -> None:
        """The head's last, so that it is evicted last."""
        if not self.waiting:
            return
        if self._passes % REFRESH_PASSES == 0:
            for job in reversed(self.waiting[:LPM_MAX_WAITING]):
                self.kv.touch(job)
        self._passes += 1

    def _repeats(self) -> set[Job]:
        """Match all that waits; returns those whose prefix an earlier one will have computed first."""
        repeats: set[Job] = set()
        ahead: RadixTree[Any] = RadixTree()
        for job in self.waiting:
            if self.kv.match(job) > SAME_PREFIX_TOKENS:
                continue
            text = job.text()
            if ahead.match(text, text.tokens)[1] >= SAME_PREFIX_TOKENS:
                repeats.add(job)
            else:
                ahead.insert(text, text.tokens)
        return repeats

    # --- decoding --------------------------------------------------------------------------------

    def _decode_step(self) -> DecodeStep:
        tokens = sum(job.length for job in self.running)
        return DecodeStep(len(self.running), tokens, self.config.pace.decode(tokens, len(self.running)))

    def _keep_what_fits(self, now: float, events: list[EngineEvent]) -> None:
        """Before a decode step: when not every running request can get a token, some are thrown back."""
        if self.kv.free >= len(self.running):
            self._decay(1)
            return
        # the one with the least output goes first, of equals the one with the longest prompt
        kept = sorted(self.running, key=lambda job: (-job.generated, job.prompt.tokens))
        while len(kept) > 1:
            job = kept.pop()
            self.kv.release(job, keep=False)
            job.retractions += 1
            job.entered_at = now
            self.waiting.append(job)
            self.retractions += 1
            events.append(Retracted(now, job.rid))
            if self.kv.free >= len(kept):
                break
        if self.kv.free < len(kept):
            job = kept.pop()
            self.kv.release(job, keep=False)
            prompt_tokens, cached = job.prompt.tokens, job.cached or 0
            events.append(Ended(now, job.rid, EndReason.OUT_OF_MEMORY, prompt_tokens, job.generated, cached))
        self.running = kept
        self._full = False
        produced = sum(job.generated for job in kept) + RETRACT_STEPS * len(kept)
        self.ratio = min(1.0, produced / (sum(job.max_new for job in kept) + 1))

    def _decay(self, steps: int) -> None:
        smallest = self._initial_ratio * SMALLEST_RATIO
        self.ratio = max(smallest, self.ratio - steps * (self._initial_ratio - smallest) / DECAY_STEPS)

    def _let_go(self, ended: list[Job]) -> list[Job]:
        for job in ended:
            self.kv.release(job, keep=True)
        if ended:
            self._full = False
        return ended

    def _in_flight(self) -> Iterator[Job]:
        yield from self.running
        if self.chunked is not None:
            yield self.chunked


def _work(job: Job) -> int:
    return max(1, job.length - job.prefix)
