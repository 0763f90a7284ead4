"""How many true tokens each component of a count is worth, learnt one answer at a time.

A Kalman filter for a linear model whose weights may drift: true = sum of weight x counted. It learns
in a few answers what a plain ratio never can (that a template leaves tools out, that numbers cost half
as much again), and knows how sure it is.
"""

import math
from operator import mul
from typing import NamedTuple

from proxy.tokens.composition import (
    COMPONENTS,
    CONSTANT,
    DIGITS,
    MEDIA,
    OVERHEAD,
    TOOLS,
    Composition,
    tokens_of,
)

# Before anything is known: each token counts as one, give or take what was measured between families.
_DOUBT = {OVERHEAD: 1.0, TOOLS: 0.5, MEDIA: 0.5, DIGITS: 0.3, CONSTANT: 60.0}
_TEXT_DOUBT = 0.3
_DRIFT = 0.002  # of a weight from one answer to the next, as a share of its first doubt
_SHARE_NOISE = 0.02  # what no component explains, as a share of the count
_TOKEN_NOISE = 10.0
_MOST_SIGMAS = 4.0  # an answer that is off by more teaches no more than this


class Prediction(NamedTuple):
    """True tokens to be expected, and the standard deviation of that."""

    tokens: float
    sigma: float


class Weights:
    """The weights of one model."""

    def __init__(self) -> None:
        self._size = len(COMPONENTS)
        self.values = [1.0] * self._size
        self.values[DIGITS] = self.values[CONSTANT] = 0.0
        self._first = [_DOUBT.get(index, _TEXT_DOUBT) ** 2 for index in range(self._size)]
        self._covariance = [
            [self._first[row] if row == column else 0.0 for column in range(self._size)]
            for row in range(self._size)
        ]

    def predict(self, counted: Composition) -> Prediction:
        """What a prompt, or a part of one, comes to."""
        used = [(index, count) for index, count in enumerate(counted) if count]  # few components
        variance = 0.0
        for index, count in used:
            row = self._covariance[index]
            variance += count * sum([row[other] * amount for other, amount in used])
        return self._prediction(counted, variance)

    def _prediction(self, counted: Composition, variance: float) -> Prediction:
        tokens = sum(map(mul, self.values, counted))
        return Prediction(tokens, math.sqrt(max(0.0, variance + _noise(counted))))

    def _spread(self, counted: Composition) -> list[float]:
        """The covariance, which is symmetric, times `counted`."""
        spread = [0.0] * self._size
        for count, row in zip(counted, self._covariance, strict=True):
            if count:
                spread = [total + value * count for total, value in zip(spread, row, strict=True)]
        return spread

    def learn(self, counted: Composition, true_tokens: float) -> None:
        """Takes in the true count of a prompt, or of a part of one."""
        spread = self._spread(counted)
        predicted, sigma = self._prediction(counted, sum(map(mul, counted, spread)))
        if sigma <= 0:
            return
        most = _MOST_SIGMAS * sigma
        error = min(max(true_tokens - predicted, -most), most)
        variance = sigma * sigma
        touched = [(index, part) for index, part in enumerate(spread) if part]  # few of them, as a rule
        for index, part in touched:
            gain = part / variance
            self.values[index] += gain * error
            row = self._covariance[index]
            for column, other in touched:
                row[column] -= gain * other
        for index, (row, first) in enumerate(zip(self._covariance, self._first, strict=True)):
            if (doubt := row[index]) < first:  # else nothing was learnt of it yet
                row[index] = min(max(doubt, 0.0) + first * _DRIFT**2, first)


def _noise(counted: Composition) -> float:
    return (_SHARE_NOISE * tokens_of(counted)) ** 2 + _TOKEN_NOISE**2
