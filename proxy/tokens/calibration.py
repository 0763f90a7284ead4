"""Learns how a model's own count differs from ours, from the `usage` of its answers.

Two corrections, and they add up: weights for what a count is made of (see `regression`), and the true
count of a conversation's last turn, to which only what is new is added by estimate.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.tokens.composition import CONSTANT, TOOLS, Composition, tokens_of
from proxy.tokens.measure import Measured
from proxy.tokens.memo import Memo
from proxy.tokens.regression import Weights

logger = logging.getLogger(__name__)

LEAST_RATIO, MOST_RATIO = 0.5, 3.0
_LONGEST_TEMPLATE = 4_000  # tokens of a default system message
_FORGETTING = 0.05  # weight of a new sample in a ratio once 20 are in
UNKNOWN_MARGIN = 1.10  # on every estimate for a model until it answered that often:
UNKNOWN_SAMPLES = 20
ENOUGH_SAMPLES = 200  # all kinds of text have been seen a few times
_MODELS = 256
_CONVERSATIONS = 20_000
_HEAVIEST_TOKENS = 16_384  # a giant prompt weighs no more than one of this size in a ratio
_PRIOR_TOKENS = 4_000  # until so many were seen a ratio stays close to 1
# A count by the model's own tokenizer that is off by more: a wrong directory or another template.
EXACT_TOLERANCE = 0.02
_EXACT_SAMPLES = 5
_SURE_SIGMAS = 3.0


@dataclass(slots=True)
class Ratio:
    """True tokens per counted token: a forgetful mean, each request weighing as its size."""

    true_tokens: float = 0.0
    raw_tokens: float = 0.0
    samples: int = 0

    def learn(self, raw: int, true: int) -> None:
        """Adds one answer's count."""
        self.samples += 1
        share = max(_FORGETTING, 1 / self.samples)
        weight = min(1.0, _HEAVIEST_TOKENS / raw)
        self.true_tokens += share * (true * weight - self.true_tokens)
        self.raw_tokens += share * (raw * weight - self.raw_tokens)

    @property
    def value(self) -> float:
        """The ratio; close to 1 until enough tokens were seen."""
        true = self.true_tokens * self.samples + _PRIOR_TOKENS
        raw = self.raw_tokens * self.samples + _PRIOR_TOKENS
        return min(max(true / raw, LEAST_RATIO), MOST_RATIO)


@dataclass(slots=True)
class Model:
    """What was learnt of one model: the ratio and the weights of estimates, the ratio of exact counts."""

    overall: Ratio = field(default_factory=Ratio)
    weights: Weights = field(default_factory=Weights)
    exact: Ratio = field(default_factory=Ratio)

    @property
    def samples(self) -> int:
        """How many of its answers were seen."""
        return self.overall.samples + self.exact.samples

    @property
    def trusted(self) -> bool:
        """Whether exact counts turned out to be exact, or too few are in to say."""
        return self.exact.samples < _EXACT_SAMPLES or abs(self.exact.value - 1) <= EXACT_TOLERANCE


class Estimate(NamedTuple):
    """A calibrated count: what is known of it, and what is estimated from `unknown`.

    `least_tokens`: no plausible tokenizer counts fewer.
    """

    tokens: int
    least_tokens: int
    known_tokens: int
    unknown: Composition


class Calibration:
    """What was learnt so far. Not thread-safe: for the event loop alone."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._conversations: Memo[int] = Memo(_CONVERSATIONS)
        self.overall = Ratio()

    def estimate(self, name: str, measured: Measured) -> Estimate:
        """The count the server will report for a prompt of model `name`."""
        model = self._models.get(name) or _UNKNOWN
        known, unknown = self._known(measured)
        tokens, sigma = model.weights.predict(unknown)
        raw = tokens_of(unknown)
        floor = LEAST_RATIO * (raw - unknown[TOOLS])  # there are templates that leave tools out
        tokens = min(max(tokens, floor), MOST_RATIO * raw + _LONGEST_TEMPLATE * unknown[CONSTANT])
        least = max(floor, tokens - _SURE_SIGMAS * sigma)
        if model.samples < UNKNOWN_SAMPLES:
            tokens *= UNKNOWN_MARGIN
        return Estimate(known + round(tokens), known + int(least), known, unknown)

    def _known(self, measured: Measured) -> tuple[int, Composition]:
        """The true count of the longest beginning that an answer was seen to, and what comes after."""
        units = measured.units
        for position in range(len(units) - 2, -1, -1):
            true = self._conversations.get(units[position].key)
            if true is not None:
                # Both turns end in the opening of the reply, which the true count holds.
                after, before = units[-2].composition, units[position].composition
                return true, [end - start for end, start in zip(after, before, strict=True)]
        return 0, measured.composition

    def wrong_by_model(self, name: str, tokens: int) -> Estimate:
        """The same for a count with the model's own tokenizer, which turned out to be the wrong one."""
        ratio = self._models[name].exact.value
        return Estimate(round(ratio * tokens), int(0.9 * ratio * tokens), 0, ())

    def learn(self, name: str, estimate: Estimate, raw: int, true: int, conversation: bytes | None) -> None:
        """Takes in the server's count of an estimated prompt; `conversation` is the key of its messages."""
        if conversation is not None:
            self._conversations.put(conversation, true)
        model = self._model(name)
        self.overall.learn(raw, true)
        model.overall.learn(raw, true)
        model.weights.learn(estimate.unknown, true - estimate.known_tokens)

    def learn_exact(self, name: str, raw: int, true: int) -> None:
        """Takes in the server's count of a prompt that was counted with the model's own tokenizer."""
        model = self._model(name)
        trusted = model.trusted
        self.overall.learn(raw, true)
        model.exact.learn(raw, true)
        if trusted and not model.trusted:
            logger.warning(
                "counts by the tokenizer directory are off by %+.1f %% for model %r: is it the model's own, "
                "and its chat template the one the server uses?",
                100 * (model.exact.value - 1),
                name,
            )

    def _model(self, name: str) -> Model:
        """Names come from clients and nobody checks them: the one unused longest gives way."""
        model = self._models.pop(name, None) or Model()
        if len(self._models) >= _MODELS:
            del self._models[next(iter(self._models))]
        self._models[name] = model
        return model

    def trusted(self, name: str) -> bool:
        """Whether counts with the model's own tokenizer may be taken as exact."""
        model = self._models.get(name)
        return model is None or model.trusted

    def samples(self, name: str) -> int:
        """How many answers of this model were seen."""
        model = self._models.get(name)
        return 0 if model is None else model.samples

    def models(self) -> Mapping[str, Model]:
        """All that is known, by name."""
        return self._models


_UNKNOWN = Model()
