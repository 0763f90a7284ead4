"""Which waiting requests enter the next prefill step, as SGLang 0.5.23 decides it for a plain KV pool."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from proxy.simulator.jobs import CLIP_NEW_TOKENS, EngineConfig, Job, Policy
from proxy.simulator.kv import KvPool

PAGE_TOKENS = 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request's share of a prefill step: `tokens` behind `depth` earlier ones."""

    job: Job
    tokens: int
    depth: int
    last: bool


@dataclass(slots=True)
class PrefillBatch:
    """One prefill step. `blocked`: the pool stopped the admission, not the step's size."""

    chunks: list[Chunk] = field(default_factory=list)
    blocked: bool = False
    hit_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)


class _Verdict(Enum):
    GO_ON = auto()
    NO_TOKEN = auto()
    NO_ROOM_IN_STEP = auto()


class Admission:
    """One pass over the waiting queue."""

    def __init__(
        self, config: EngineConfig, kv: KvPool, running: Sequence[Job], waiting: Sequence[Job], ratio: float
    ) -> None:
        self._config = config
        self._kv = kv
        self._waiting = waiting
        self._chunk_left = config.chunk_tokens
        self._step_left = config.max_prefill_tokens
        # what the running will still need, and what this step takes now and later
        self._promised = sum(
            min(job.max_new - job.generated, CLIP_NEW_TOKENS) * (1.0 if job.ignore_eos else ratio)
            for job in running
        )
        self._taken = 0
        self.batch = PrefillBatch()

    def build(self, chunked: Job | None, slots: int) -> PrefillBatch:
        """The step: the request in chunked prefill first, then the waiting in order, up to `slots` of them.

        It stops at the first that does not fit.
        """
        open_chunk = self._continue(chunked) if chunked is not None else False
        for job in self._waiting:
            if len(self.batch.chunks) >= slots:
                self.batch.blocked = True
                break
            if self._state() is _Verdict.NO_ROOM_IN_STEP:
                break
            verdict = self._add(job, has_open_chunk=open_chunk)
            if verdict is not _Verdict.GO_ON:
                self.batch.blocked = verdict is _Verdict.NO_TOKEN
                break
        return self.batch

    def _continue(self, job: Job) -> bool:
        """The next chunk of the request in prefill takes what the step has; True when it is not its last."""
        remaining = job.length - job.prefix - job.private
        room = min(self._chunk_left, int(self._room()))
        if room <= 0:  # it must make progress to give its tokens back one day
            room = self._chunk_left
        if self._config.policy is Policy.SHORTEST_PREFILL_FIRST:
            room = min(room, self._left_to_shorter(remaining))
        tokens = min(remaining, room)
        last = tokens == remaining
        self._put(job, tokens, last=last)
        return not last

    def _left_to_shorter(self, remaining: int) -> int:
        """`shortest-prefill-first` keeps part of the chunk for waiting requests with less work."""
        budget, reserved = self._chunk_left, 0
        for job in self._waiting:
            work = max(1, job.length - job.prefix)
            if work >= remaining or reserved + work > budget - PAGE_TOKENS:
                break
            reserved += work
        return budget - reserved

    def _add(self, job: Job, *, has_open_chunk: bool) -> _Verdict:
        self._kv.match(job)
        self._kv.lock(job)  # its own cached prefix is no longer evictable
        uncached = job.length - job.prefix
        need = uncached + min(max(job.max_new - job.generated, 0), CLIP_NEW_TOKENS) + PAGE_TOKENS
        fits = need < self._room()
        cut = uncached > self._chunk_left
        second_cut = cut and has_open_chunk and self._config.policy is Policy.SHORTEST_PREFILL_FIRST
        if not fits or second_cut:
            self._kv.unlock(job)
            job.node = None
            return _Verdict.NO_ROOM_IN_STEP if fits else _Verdict.NO_TOKEN
        if job.cached is None:
            job.cached = job.prefix
        self.batch.hit_tokens += job.prefix
        self._put(job, min(uncached, self._chunk_left), last=not cut)
        return self._state()

    def _put(self, job: Job, tokens: int, *, last: bool) -> None:
        self.batch.chunks.append(Chunk(job, tokens, job.prefix + job.private, last))
        self._taken += tokens + PAGE_TOKENS
        self._promised += tokens + PAGE_TOKENS + (min(job.max_new, CLIP_NEW_TOKENS) if last else 0)
        self._chunk_left -= tokens
        self._step_left -= tokens

    def _room(self) -> float:
        return self._kv.free - self._promised

    def _state(self) -> _Verdict:
        if self._room() <= 0 or self._kv.free - self._taken <= 0:
            return _Verdict.NO_TOKEN
        if self._step_left <= 0 or self._chunk_left <= 0:
            return _Verdict.NO_ROOM_IN_STEP
        return _Verdict.GO_ON
