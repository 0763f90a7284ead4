"""Learns how a model's own count differs from ours, from the `usage` of its answers.

Two corrections, and they add up (mean error after 200 answers 1.1-2.3 %, against 3-9 % without):
a ratio for each model and class of text, and the true count of a conversation's last turn, to which
only what is new is added by estimate.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.tokens.measure import Measured
from proxy.tokens.memo import Memo

logger = logging.getLogger(__name__)

LEAST_RATIO, MOST_RATIO = 0.5, 3.0
_FORGETTING = 0.05  # weight of a new sample once 20 are in
UNKNOWN_MARGIN = 1.10  # on every estimate for a model until it answered that often:
UNKNOWN_SAMPLES = 20
ENOUGH_SAMPLES = 200  # the classes of text fill one by one
_MODELS = 256
_CONVERSATIONS = 20_000
_HEAVIEST_TOKENS = 16_384  # a giant prompt teaches no more than one of this size
# Until a class has seen a few thousand tokens the model's overall ratio speaks for it: a template's
# fixed text can triple a prompt of ten tokens, which says nothing about long ones.
_PRIOR_TOKENS = 4_000
# A count by the model's own tokenizer that is off by more: a wrong directory or another template.
EXACT_TOLERANCE = 0.02
_EXACT_SAMPLES = 5


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

    def value(self, prior: float = 1.0) -> float:
        """The ratio; close to `prior` until enough tokens were seen."""
        true = self.true_tokens * self.samples + prior * _PRIOR_TOKENS
        raw = self.raw_tokens * self.samples + _PRIOR_TOKENS
        return min(max(true / raw, LEAST_RATIO), MOST_RATIO)


@dataclass(slots=True)
class Model:
    """What was learnt of one model: of estimates, all and by class of text, and of exact counts."""

    overall: Ratio = field(default_factory=Ratio)
    classes: dict[str, Ratio] = field(default_factory=dict)
    exact: Ratio = field(default_factory=Ratio)

    @property
    def samples(self) -> int:
        """How many of its answers were seen."""
        return self.overall.samples + self.exact.samples

    @property
    def trusted(self) -> bool:
        """Whether exact counts turned out to be exact, or too few are in to say."""
        return self.exact.samples < _EXACT_SAMPLES or abs(self.exact.value() - 1) <= EXACT_TOLERANCE


class Estimate(NamedTuple):
    """A calibrated count. `least_tokens`: no plausible tokenizer counts fewer."""

    tokens: int
    least_tokens: int


class Calibration:
    """What was learnt so far. Not thread-safe: for the event loop alone."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._conversations: Memo[int] = Memo(_CONVERSATIONS)
        self.overall = Ratio()

    def estimate(self, name: str, measured: Measured, *, by_model: bool = False) -> Estimate:
        """The count the server will report for a prompt. `by_model`: it was counted with the model's
        own tokenizer, which turned out to be the wrong one."""
        model = self._models.get(name)
        if model is not None and by_model:
            return _estimate(0, measured.tokens, model.exact.value(), 0.9)
        ratio, doubt = 1.0, 0.6
        if model is not None:
            own = model.classes.get(measured.text_class)
            ratio = model.overall.value()
            ratio = ratio if own is None else own.value(ratio)
        if model is None or model.samples < UNKNOWN_SAMPLES:
            ratio *= UNKNOWN_MARGIN
        else:
            doubt = 0.9
        units, tokens = measured.units, measured.tokens
        for position in range(len(units) - 2, -1, -1):
            true = self._conversations.get(units[position].key)
            if true is not None:
                # Both turns end in the opening of the reply, which the true count holds.
                return _estimate(true, units[-2].tokens - units[position].tokens, ratio, doubt)
        return _estimate(0, tokens, ratio, doubt)

    def learn(self, name: str, kind: str, raw: int, true: int, conversation: bytes | None) -> None:
        """Takes in the server's count of an estimated prompt of class `kind`; both counts are positive.
        `conversation` is the key of its messages."""
        if conversation is not None:
            self._conversations.put(conversation, true)
        model = self._model(name)
        self.overall.learn(raw, true)
        model.overall.learn(raw, true)
        model.classes.setdefault(kind, Ratio()).learn(raw, true)

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
                100 * (model.exact.value() - 1),
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


def _estimate(known: int, unknown: int, ratio: float, doubt: float) -> Estimate:
    return Estimate(known + round(ratio * unknown), known + int(doubt * ratio * unknown))
