"""How long prefill and decode take on one pool, learnt while it runs.

Prefill of n tokens behind a context of d tokens: seconds = n (a + b (d + n/2)); a is the dense
part, b the attention that grows with depth. Measured on an H200 with an 8B model: a = 17.6e-6,
b = 0.98e-9. Both come from recursive least squares over what the engine reports (its prefill
counters) or what we see (time to first token). Decode is an average of seconds per token.
"""

from dataclasses import dataclass

PRIOR_SECONDS_PER_TOKEN = 5e-5  # 20,000 tokens/s: optimistic, so that a guess refuses nobody
PRIOR_SECONDS_PER_DECODE_TOKEN = 0.02
PRIOR_DECODE_STEPS = 32.0  # what the prior weighs
FORGET = 0.98  # weight of the past per sample: about the last fifty
MIN_SAMPLE_TOKENS = 512  # shorter prefills time the overhead, not the work
KNOWN_AFTER_TOKENS = 16_384  # of observed prefill, before a refusal may rest on the rate
DECODE_HALF_LIFE_SECONDS = 60.0  # of stream time: a mean over seconds, not over samples
_DEPTH_SCALE = 1e5  # keeps both regressors near one


def nominal_seconds(prefill_tokens: int, output_tokens: float) -> float:
    """What so much work takes on no machine in particular: a measure for charges, that never drifts."""
    return prefill_tokens * PRIOR_SECONDS_PER_TOKEN + output_tokens * PRIOR_SECONDS_PER_DECODE_TOKEN


@dataclass(slots=True)
class CostModel:
    """Least squares over (n, n x depth) with forgetting and a prior worth a little data."""

    observed_tokens: float = 0.0
    seconds_per_decode_token: float = PRIOR_SECONDS_PER_DECODE_TOKEN
    _decode_steps: float = PRIOR_DECODE_STEPS
    _decode_seconds: float = PRIOR_DECODE_STEPS * PRIOR_SECONDS_PER_DECODE_TOKEN
    seconds_per_long_decode_token: float = PRIOR_SECONDS_PER_DECODE_TOKEN
    _long_decode_steps: float = PRIOR_DECODE_STEPS
    _long_decode_seconds: float = PRIOR_DECODE_STEPS * PRIOR_SECONDS_PER_DECODE_TOKEN
    # sums of x xT and x y for y/n = a + b' (depth / scale), weighted by n
    _w: float = 0.0
    _wx: float = 0.0
    _wxx: float = 0.0
    _wy: float = 0.0
    _wxy: float = 0.0
    _a: float = PRIOR_SECONDS_PER_TOKEN
    _b: float = 0.0

    @property
    def known(self) -> bool:
        return self.observed_tokens >= KNOWN_AFTER_TOKENS

    @property
    def tokens_per_second(self) -> float:
        """R: the prefill rate at shallow depth as now believed."""
        return 1.0 / self._a if self._a > 0 else 0.0

    def prefill_seconds(self, tokens: int, depth_tokens: int = 0) -> float:
        """Predicted seconds to prefill `tokens` behind `depth_tokens` of context."""
        return tokens * (self._a + self._b * (depth_tokens + tokens / 2))

    def prefill_tokens_within(self, seconds: float, depth_tokens: int) -> int:
        """How many tokens fit into `seconds` at that depth: the inverse of `prefill_seconds`."""
        slope = self._a + self._b * depth_tokens
        # the form of the quadratic's root that no small b can spoil
        return int(2 * seconds / (slope + (slope * slope + 2 * self._b * seconds) ** 0.5))

    def learn_prefill(self, tokens: int, depth_tokens: float, seconds: float) -> None:
        """One observation: `tokens` were prefilled in `seconds`, their middle at `depth_tokens`."""
        if tokens < MIN_SAMPLE_TOKENS or seconds <= 0:
            return
        self.observed_tokens += tokens
        x = depth_tokens / _DEPTH_SCALE
        y = seconds / tokens
        w = min(tokens, 32_768) / 8192
        self._w = self._w * FORGET + w
        self._wx = self._wx * FORGET + w * x
        self._wxx = self._wxx * FORGET + w * x * x
        self._wy = self._wy * FORGET + w * y
        self._wxy = self._wxy * FORGET + w * x * y
        self._solve()

    def decode_seconds(self, tokens: float, *, long: bool) -> float:
        """Predicted seconds to produce `tokens`, behind a long prompt or a short one."""
        return tokens * (self.seconds_per_long_decode_token if long else self.seconds_per_decode_token)

    def learn_decode(self, steps: float, seconds: float, *, long: bool = False) -> None:
        """A stream produced `steps` tokens in `seconds`, stalls behind others' prefill included.

        Those behind long prompts have a mean of their own: there is one prefill after each of them,
        while many shorts are caught in one.
        """
        if steps < 1 or seconds <= 0:
            return
        keep = 0.5 ** (seconds / DECODE_HALF_LIFE_SECONDS)
        if long:
            self._long_decode_steps = self._long_decode_steps * keep + steps
            self._long_decode_seconds = self._long_decode_seconds * keep + seconds
            self.seconds_per_long_decode_token = self._long_decode_seconds / self._long_decode_steps
        self._decode_steps = self._decode_steps * keep + steps
        self._decode_seconds = self._decode_seconds * keep + seconds
        self.seconds_per_decode_token = self._decode_seconds / self._decode_steps

    def _solve(self) -> None:
        mean_x, mean_y = self._wx / self._w, self._wy / self._w
        variance = self._wxx / self._w - mean_x * mean_x
        covariance = self._wxy / self._w - mean_x * mean_y
        # a slope needs depths that differ; ridge keeps it near zero otherwise
        slope = max(0.0, covariance / (variance + 1e-3))
        intercept = mean_y - slope * mean_x
        if intercept <= mean_y * 0.05:  # never let noise turn shallow prefill free
            intercept = mean_y * 0.05
            slope = (mean_y - intercept) / mean_x if mean_x > 0 else 0.0
        self._a, self._b = intercept, slope / _DEPTH_SCALE
