"""How many tokens is this request? Parses, counts and calibrates; keeps large bodies off the loop."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from proxy.admission.types import Segment
from proxy.tokens.calibration import ENOUGH_SAMPLES, Calibration
from proxy.tokens.counter import Counter
from proxy.tokens.measure import Mark, Measured, measure
from proxy.tokens.media import MediaRules
from proxy.tokens.o200k import load_encoding
from proxy.tokens.reading import read
from proxy.tokens.shape import Api, Shape

INLINE_BYTES = 16_384  # at most about 2 ms on the event loop, 0.1 ms for a usual chat
# Beyond this much waiting to be counted (0.1-0.3 s of work) newcomers are estimated from samples.
BACKLOG_BYTES = 2 * 1024 * 1024
COUNTED_BYTES = 8 * 1024 * 1024  # larger bodies (two million tokens) are estimated from samples
MEMO_ENTRIES = 100_000  # about 20 MB
_TOKENS_PER_BYTE = 1 / 3.5
_DENSITY_WEIGHT = 0.02
_DENSITY_BYTES = 4_096  # the JSON around a small body's text would tell too few tokens a byte


@dataclass(frozen=True, slots=True)
class Sized:
    """A request with its size.

    `prompt_tokens` is the calibrated count, of all items of a batch together; `raw_tokens` the plain
    one. `least_tokens`: refuse a prompt as too large for ever only where this figure is too large.
    `exact`: counted with the model's own tokenizer and template, or given as ids.
    `segments`: see `proxy.admission.types.Request`. `counted`: False when
    the vocabulary was not loaded yet. `conversation`: the key of all its messages.
    """

    shape: Shape
    prompt_tokens: int
    raw_tokens: int
    least_tokens: int
    exact: bool
    segments: tuple[Segment, ...]
    text_class: str
    body_bytes: int
    counted: bool = True
    conversation: bytes | None = None


class SizerStats(NamedTuple):
    """For /admission/status: what was learnt, and how often counting fell back."""

    ready: bool
    ratios: dict[str, float]
    samples: dict[str, int]
    sized: int
    sampled: int
    failures: int
    memo_entries: int
    backlog_bytes: int
    bytes_per_token: float


class _Job(NamedTuple):
    shape: Shape
    measured: Measured


class _Backlog:
    """Bytes handed to the counting thread and not done yet; touched by both threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.size_bytes += size_bytes


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No cycles are made here, but a million new objects would set off full collections, each of
    which stops the event loop for as long as it takes to visit them all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Sizer:
    """Sizes requests with the default counter, calibrated by what the server reports.

    `counter`: a loaded one, instead of the one that `load` builds.
    """

    def __init__(
        self,
        *,
        counter: Counter | None = None,
        media: MediaRules | None = None,
        inline_bytes: int = INLINE_BYTES,
        backlog_bytes: int = BACKLOG_BYTES,
        counted_bytes: int = COUNTED_BYTES,
        memo_entries: int = MEMO_ENTRIES,
    ) -> None:
        self._media = media or MediaRules()
        self._inline_bytes = inline_bytes
        self._backlog_bytes = backlog_bytes
        self._counted_bytes = counted_bytes
        self._memo_entries = memo_entries
        self._counter = counter or Counter(None, memo_entries=1)
        self._calibration = Calibration()
        self._backlog = _Backlog()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="token-counter")
        self._density = _TOKENS_PER_BYTE
        self._sized = 0
        self._sampled = 0
        self._ready = counter is not None

    @property
    def ready(self) -> bool:
        """Whether the vocabulary is loaded; before, sizes are estimated from bytes."""
        return self._ready

    async def load(self) -> None:
        """Builds the vocabulary, off the event loop."""
        if self._ready:
            return
        loop = asyncio.get_running_loop()
        encoding = await loop.run_in_executor(self._executor, load_encoding)
        self._counter = Counter(encoding, memo_entries=self._memo_entries)
        self._ready = True

    def close(self) -> None:
        """Ends the counting thread; what still waits for it is cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def size(self, api: Api, body: bytes) -> Sized:
        """Parses and counts a request. Raises BadRequest, and nothing else, for a bad body."""
        if len(body) <= self._inline_bytes:
            job = self._run(api, body, sampled=False)
        else:
            job = await self._in_thread(api, body)
        return self._calibrated(job, len(body))

    async def _in_thread(self, api: Api, body: bytes) -> _Job:
        waiting = self._backlog.size_bytes
        sampled = len(body) > self._counted_bytes or (
            waiting > 0 and waiting + len(body) > self._backlog_bytes
        )
        if sampled:
            self._sampled += 1
        charge = 0 if sampled else len(body)
        self._backlog.add(charge)
        future = self._executor.submit(self._run_large, api, body, sampled=sampled)

        def done(_: Future[_Job]) -> None:
            self._backlog.add(-charge)

        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    def _run_large(self, api: Api, body: bytes, *, sampled: bool) -> _Job:
        with _collector_paused():
            return self._run(api, body, sampled=sampled)

    def _run(self, api: Api, body: bytes, *, sampled: bool) -> _Job:
        shape, prompt = read(api, body, self._media)
        return _Job(shape, measure(self._counter, shape, prompt, body_bytes=len(body), sampled=sampled))

    def _calibrated(self, job: _Job, body_bytes: int) -> Sized:
        shape, measured = job
        self._sized += 1
        if body_bytes >= _DENSITY_BYTES and shape.media == 0 and not shape.has_ids:
            self._density += _DENSITY_WEIGHT * (measured.tokens / body_bytes - self._density)
        exact = shape.has_ids
        if exact:
            tokens = least = measured.tokens
        else:
            tokens, least = self._calibration.estimate(
                shape.model, measured.text_class, measured.tokens, measured.units
            )
        return Sized(
            shape=shape,
            prompt_tokens=max(1, tokens),
            raw_tokens=measured.tokens,
            least_tokens=least,
            exact=exact,
            segments=_segments(measured, tokens),
            text_class=measured.text_class,
            body_bytes=body_bytes,
            counted=self._ready,
            conversation=measured.units[-2].key if len(measured.units) > 1 else None,
        )

    def observe(self, sized: Sized, prompt_tokens: int) -> None:
        """Learns from the server's own count of a request, its `usage.prompt_tokens`."""
        if sized.counted and not sized.exact:
            self._calibration.learn(
                sized.shape.model, sized.text_class, sized.raw_tokens, prompt_tokens, sized.conversation
            )

    def bytes_estimate(self, body_bytes: int) -> int:
        """Tokens of a body of which nothing but its length is known."""
        return max(1, round(body_bytes * self._density * self._calibration.overall.value()))

    def needs_samples(self, model: str) -> bool:
        """Whether more answers of this model are wanted before its ratios are trusted."""
        return self._calibration.samples(model) < ENOUGH_SAMPLES

    def stats(self) -> SizerStats:
        """Where counting stands, for /admission/status."""
        ratios = self._calibration.ratios()
        return SizerStats(
            ready=self._ready,
            ratios=ratios,
            samples={model: self._calibration.samples(model) for model in ratios},
            sized=self._sized,
            sampled=self._sampled,
            failures=self._counter.failures,
            memo_entries=self._counter.memo_entries,
            backlog_bytes=self._backlog.size_bytes,
            bytes_per_token=1 / self._density,
        )


def _segments(measured: Measured, tokens: int) -> tuple[Segment, ...]:
    """The segments in calibrated tokens; rounding down keeps their sum within the prompt's."""
    if not measured.segments:
        return ()
    scale = tokens / measured.tokens
    start = Mark(b"", 0)
    found: list[Segment] = []
    for mark in measured.segments:
        found.append(Segment(mark.key, int((mark.tokens - start.tokens) * scale)))
        start = mark
    return tuple(found)
