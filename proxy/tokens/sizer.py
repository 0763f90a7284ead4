"""How many tokens is this request? Reads, counts and calibrates; keeps large bodies off the loop."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from proxy.tokens.body import parse_object
from proxy.tokens.breath import let_go
from proxy.tokens.calibration import ENOUGH_SAMPLES, Calibration, Estimate
from proxy.tokens.composition import largest
from proxy.tokens.counter import Counter
from proxy.tokens.exact.counter import ExactCounter
from proxy.tokens.exact.patterns import Unsupported
from proxy.tokens.image_families import Family
from proxy.tokens.measure import Measured, measure
from proxy.tokens.media_choice import MediaChoice
from proxy.tokens.o200k import load_encoding
from proxy.tokens.reading import read_document
from proxy.tokens.shape import Api, Shape
from proxy.tokens.sized import Sized, SizerStats, scaled_segments
from proxy.tokens.thread import CountingThread

logger = logging.getLogger(__name__)

INLINE_BYTES = 16_384  # at most about 2 ms on the event loop, 0.1 ms for a usual chat
# Beyond this much waiting to be counted (0.1-0.3 s of work) newcomers are estimated from samples.
BACKLOG_BYTES = 2 * 1024 * 1024
COUNTED_BYTES = 8 * 1024 * 1024  # larger bodies (two million tokens) are estimated from samples
MEMO_ENTRIES = 100_000  # about 20 MB
_TOKENS_PER_BYTE = 1 / 3.5
_DENSITY_WEIGHT = 0.02
_DOUBTFUL = 0.10  # of an estimate: how far below it its lower bound may lie before usage is asked for
_DENSITY_BYTES = 4_096  # the JSON around a small body's text would tell too few tokens a byte


class _Job(NamedTuple):
    shape: Shape
    measured: Measured


class Sizer:
    """Sizes requests: exactly with the model's own tokenizer where it is given and takes the request,
    else with o200k_base (or the model's vocabulary), calibrated by what the server reports."""

    def __init__(
        self,
        *,
        tokenizer_path: Path | None = None,
        chat_template: Path | None = None,
        image_family: Family | None = None,
        counter: Counter | None = None,
        inline_bytes: int = INLINE_BYTES,
        backlog_bytes: int = BACKLOG_BYTES,
        counted_bytes: int = COUNTED_BYTES,
        memo_entries: int = MEMO_ENTRIES,
    ) -> None:
        """`tokenizer_path`: a model's tokenizer directory. `chat_template`: a file that replaces its
        template, as SGLang's `--chat-template`. `image_family`: whose image rule counts for all models,
        None to find out. `counter`: a loaded one, used as long as `load` builds no other."""
        self._tokenizer_path = tokenizer_path
        self._chat_template = chat_template
        self._media = MediaChoice(image_family)
        self._inline_bytes = inline_bytes
        self._backlog_bytes = backlog_bytes
        self._counted_bytes = counted_bytes
        self._memo_entries = memo_entries
        self._ready = counter is not None
        self._counter = counter or Counter(None, memo_entries=1)
        self._exact: ExactCounter | None = None
        self._note: str | None = None
        self._calibration = Calibration()
        self._thread = CountingThread()
        self._density = _TOKENS_PER_BYTE
        self._sized = 0
        self._sampled = 0

    @property
    def ready(self) -> bool:
        """Whether a vocabulary is loaded; before, sizes are estimated from bytes."""
        return self._ready

    @property
    def exact(self) -> bool:
        """Whether the model's own tokenizer is at hand."""
        return self._exact is not None

    @property
    def meant_exact(self) -> bool:
        """Whether the model's own tokenizer was asked for, usable or not."""
        return self._tokenizer_path is not None

    @property
    def vocabulary_size(self) -> int | None:
        """The first id that is no token of the model, None without its tokenizer."""
        return None if self._exact is None else self._exact.tokenizer.vocabulary_size

    async def load(self) -> None:
        """Reads the tokenizer directory, or builds the default vocabulary, off the event loop.

        A directory that cannot be used is logged, and told in `stats`; counting then is by default.
        """
        if self._tokenizer_path is not None:
            await self._thread.run(0, partial(self._media.read_directory, self._tokenizer_path))
            self._exact = await self._thread.run(0, partial(self._load_exact, self._tokenizer_path))
        if self._exact is not None:
            self._counter, self._note = self._exact.counter, self._exact.note
        elif not self._ready:
            if self._chat_template is not None and self._tokenizer_path is None:
                logger.warning("PROXY_CHAT_TEMPLATE has no effect without PROXY_TOKENIZER_PATH")
            encoding = await self._thread.run(0, load_encoding)
            self._counter = Counter(encoding, memo_entries=self._memo_entries)
        self._ready = True

    def _load_exact(self, directory: Path) -> ExactCounter | None:
        try:
            exact = ExactCounter(directory, self._chat_template, memo_entries=self._memo_entries)
        except (OSError, ValueError, KeyError, TypeError, Unsupported) as error:
            self._note = f"tokenizer directory {directory} cannot be used: {error}"
            logger.warning("%s; counting with o200k_base, calibrated", self._note)
            return None
        if exact.note is not None:
            logger.warning("%s", exact.note)
        return exact

    def serves(self, models: Sequence[str], path: str | None) -> None:
        """A server runs these models from `path`: their names may tell how images are counted."""
        self._media.serves(models, path)

    def close(self) -> None:
        """Ends the counting thread; what still waits for it is cancelled."""
        self._thread.close()

    async def size(self, api: Api, body: bytes) -> Sized:
        """Reads and counts a request. Raises BadRequest, and nothing else, for a bad body."""
        if len(body) <= self._inline_bytes:
            return self._calibrated(self._job(api, body, sampled=False), len(body))
        waiting = self._thread.backlog_bytes
        sampled = len(body) > self._counted_bytes or (
            waiting > 0 and waiting + len(body) > self._backlog_bytes
        )
        self._sampled += sampled
        job = await self._thread.run(
            0 if sampled else len(body), partial(self._job, api, body, sampled=sampled)
        )
        return self._calibrated(job, len(body))

    async def ids(self, api: Api, body: bytes) -> list[int] | None:
        """The exact token ids of a request's prompt, None when they cannot be known here: no
        tokenizer, no template, several prompts, or media. Raises BadRequest."""
        if self._exact is None:
            return None
        return await self._thread.run(len(body), partial(self._ids, self._exact, api, body))

    def _ids(self, exact: ExactCounter, api: Api, body: bytes) -> list[int] | None:
        document = parse_object(body)
        shape, prompt = read_document(api, document, self._media.of(document.get("model")))
        return exact.ids(shape, prompt, document)

    def _job(self, api: Api, body: bytes, *, sampled: bool) -> _Job:
        document = parse_object(body)
        shape, prompt = read_document(api, document, self._media.of(document.get("model")))
        measured: Measured | None = None
        if self._exact is not None:
            measured = self._exact.measure(shape, prompt, document, sampled=sampled)
        if measured is None:
            measured = measure(self._counter, shape, prompt, sampled=sampled)
        for part in (*document.values(), *prompt.items):
            let_go(part)
        return _Job(shape, measured)

    def _calibrated(self, job: _Job, body_bytes: int) -> Sized:
        shape, measured = job
        self._sized += 1
        if body_bytes >= _DENSITY_BYTES and shape.media == 0 and not shape.has_ids:
            self._density += _DENSITY_WEIGHT * (measured.tokens / body_bytes - self._density)
        by_model = measured.exact and not shape.has_ids
        estimate: Estimate | None = None
        if by_model and not self._calibration.trusted(shape.model):
            estimate = self._calibration.wrong_by_model(shape.model, measured.tokens)
        elif not measured.exact:
            estimate = self._calibration.estimate(shape.model, measured)
        tokens = measured.tokens if estimate is None else estimate.tokens
        return Sized(
            shape=shape,
            prompt_tokens=max(1, tokens),
            raw_tokens=measured.tokens,
            least_tokens=measured.tokens if estimate is None else estimate.least_tokens,
            exact=estimate is None,
            segments=scaled_segments(measured.segments, tokens / max(1, measured.tokens)),
            text_class=largest(measured.composition),
            body_bytes=body_bytes,
            by_model=by_model,
            estimate=estimate if self._ready else None,
            conversation=measured.units[-2].key if len(measured.units) > 1 else None,
        )

    def observe(self, sized: Sized, prompt_tokens: int) -> None:
        """Learns from the server's own count of a request, its `usage.prompt_tokens`."""
        if sized.raw_tokens <= 0 or prompt_tokens <= 0:
            return
        name, raw = sized.shape.model, sized.raw_tokens
        if sized.by_model:
            self._calibration.learn_exact(name, raw, prompt_tokens)
        elif sized.estimate is not None:
            self._calibration.learn(name, sized.estimate, raw, prompt_tokens, sized.conversation)

    def bytes_estimate(self, body_bytes: int) -> int:
        """Tokens of a body of which nothing but its length is known."""
        return max(1, round(body_bytes * self._density * self._calibration.overall.value))

    def needs_samples(self, model: str) -> bool:
        """Whether more answers of this model are wanted before its ratios are trusted."""
        return self._calibration.samples(model) < ENOUGH_SAMPLES

    def wants_usage(self, sized: Sized) -> bool:
        """Whether the server's own count of this request would teach something: its model has answered
        little yet, or what it is made of was hardly seen so far."""
        if self.needs_samples(sized.shape.model):
            return True
        return sized.estimate is not None and sized.least_tokens < (1 - _DOUBTFUL) * sized.prompt_tokens

    def stats(self) -> SizerStats:
        """Where counting stands, for /admission/status."""
        models = self._calibration.models()
        return SizerStats(
            ready=self._ready,
            tokenizer="o200k_base" if self._exact is None else self._exact.tokenizer.engine.name,
            note=self._note,
            ratios={name: model.overall.value for name, model in models.items() if model.overall.samples},
            exact_ratios={name: model.exact.value for name, model in models.items() if model.exact.samples},
            samples={name: model.samples for name, model in models.items()},
            sized=self._sized,
            sampled=self._sampled,
            failures=self._counter.failures,
            memo_entries=self._counter.memo_entries,
            backlog_bytes=self._thread.backlog_bytes,
            bytes_per_token=1 / self._density,
            image_families=self._media.families,
        )
