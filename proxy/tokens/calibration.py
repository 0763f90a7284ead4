"""Learns how a model's own count differs from ours, from the `usage` of its answers.

Two corrections, and they add up (mean error after 200 answers 1.1-2.3 %, against 3-9 % without):
a ratio for each model and class of text, and the true count of a conversation's last turn, to which
only what is new is added by estimate.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.tokens.measure import Mark
from proxy.tokens.memo import Memo

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


@dataclass(slots=True)
class Ratio:
    """True tokens per estimated token: a forgetful mean, each request weighing as its size."""

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
class _Model:
    overall: Ratio = field(default_factory=Ratio)
    classes: dict[str, Ratio] = field(default_factory=dict)


class Estimate(NamedTuple):
    """A calibrated count. `least_tokens`: no plausible tokenizer counts fewer."""

    tokens: int
    least_tokens: int


class Calibration:
    """What was learnt so far. Not thread-safe: for the event loop alone."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}
        self._conversations: Memo[int] = Memo(_CONVERSATIONS)
        self.overall = Ratio()

    def estimate(self, model: str, kind: str, tokens: int, units: tuple[Mark, ...]) -> Estimate:
        """The count the server will report for a prompt of `tokens` raw tokens and class `kind`.

        `units` are the marks of the prompt's last units, whose last is the opening of the reply.
        """
        learnt = self._models.get(model)
        samples = learnt.overall.samples if learnt is not None else 0
        ratio = self._ratio(learnt, kind) * (UNKNOWN_MARGIN if samples < UNKNOWN_SAMPLES else 1.0)
        doubt = 0.9 if samples >= UNKNOWN_SAMPLES else 0.6
        for position in range(len(units) - 2, -1, -1):
            true = self._conversations.get(units[position].key)
            if true is not None:
                reply_tokens = tokens - units[-2].tokens
                new_tokens = max(0, tokens - units[position].tokens - reply_tokens)
                return Estimate(true + round(ratio * new_tokens), true + int(doubt * ratio * new_tokens))
        return Estimate(round(ratio * tokens), int(doubt * ratio * tokens))

    @staticmethod
    def _ratio(learnt: _Model | None, kind: str) -> float:
        if learnt is None:
            return 1.0
        overall = learnt.overall.value()
        own = learnt.classes.get(kind)
        return own.value(overall) if own is not None else overall

    def learn(self, model: str, kind: str, raw: int, true: int, conversation: bytes | None) -> None:
        """Takes in the server's own count of a prompt; `conversation` is the key of its messages."""
        if raw <= 0 or true <= 0:
            return
        if conversation is not None:
            self._conversations.put(conversation, true)
        learnt = self._model(model)
        self.overall.learn(raw, true)
        learnt.overall.learn(raw, true)
        learnt.classes.setdefault(kind, Ratio()).learn(raw, true)

    def _model(self, name: str) -> _Model:
        """Names come from clients and nobody checks them: the one unused longest gives way."""
        learnt = self._models.pop(name, None) or _Model()
        if len(self._models) >= _MODELS:
            del self._models[next(iter(self._models))]
        self._models[name] = learnt
        return learnt

    def samples(self, model: str) -> int:
        """How many answers of this model were seen."""
        learnt = self._models.get(model)
        return learnt.overall.samples if learnt is not None else 0

    def ratios(self) -> dict[str, float]:
        """The overall ratio of each model."""
        return {name: learnt.overall.value() for name, learnt in self._models.items()}
