"""How long an engine's steps take: the machine, as four numbers."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """Step times of one machine.

    A prefill step costs, per request in it, `n * (a + b * (depth + n / 2))` seconds for `n` new tokens
    behind `depth` earlier ones; a decode step costs `c + d * tokens` seconds, `tokens` being the sum of
    the lengths it attends to. The overheads are what the server itself adds to every step, for every request
    in it, and for every token prefilled: milliseconds on two CPU cores, little beside a GPU.
    """

    prefill_token_seconds: float
    prefill_depth_seconds: float
    decode_step_seconds: float
    decode_token_seconds: float
    overhead_seconds: float = 0.0
    overhead_request_seconds: float = 0.0
    overhead_token_seconds: float = 0.0

    def prefill(self, tokens: int, depth: int) -> float:
        """Seconds of work for `tokens` new tokens of one request behind `depth` earlier ones."""
        token = self.prefill_token_seconds + self.overhead_token_seconds
        return tokens * (token + self.prefill_depth_seconds * (depth + tokens / 2))

    def decode(self, tokens: int, requests: int) -> float:
        """Seconds of one decode step over `requests` sequences of `tokens` tokens in all."""
        work = self.decode_step_seconds + self.decode_token_seconds * tokens
        return work + self.overhead(requests)

    def overhead(self, requests: int) -> float:
        """What the server adds to a step of `requests` requests."""
        return self.overhead_seconds + self.overhead_request_seconds * requests

    def faster(self, factor: float) -> "Pace":
        """The same machine `factor` times faster; the server's own overhead stays."""
        return replace(
            self,
            prefill_token_seconds=self.prefill_token_seconds / factor,
            prefill_depth_seconds=self.prefill_depth_seconds / factor,
            decode_step_seconds=self.decode_step_seconds / factor,
            decode_token_seconds=self.decode_token_seconds / factor,
        )

    def with_overhead(
        self, seconds: float, request_seconds: float = 0.0, token_seconds: float = 0.0
    ) -> "Pace":
        """The same machine whose server adds that per step, per request in it, per token prefilled."""
        return replace(
            self,
            overhead_seconds=seconds,
            overhead_request_seconds=request_seconds,
            overhead_token_seconds=token_seconds,
        )


# What a whole SGLang 0.5.23 with its clients adds on two CPU cores: per step, request and prefilled token.
# Fitted to its own step log; the mixed load at true speed then comes out within a tenth.
TWO_CORES = (0.002, 0.0002, 2.5e-6)

PACES = {
    # an 8B bf16 model on one H200, measured: 64K prefills in 3.1 s, 180K in 19 s
    "h200-8b": Pace(17.6e-6, 0.977e-9, 2.0e-3, 4.7e-8),
    # the machine with the 186,624-token pool: 6,900 prefill tokens a second at any depth
    "rtx6000-tp2": Pace(1 / 6900, 0.0, 4.0e-3, 6.0e-8),
}


def pace_of(text: str, *, speedup: float = 1.0) -> Pace:
    """The pace named `text`, or the one its four comma-separated numbers spell.

    Raises ValueError naming what is allowed.
    """
    named = PACES.get(text)
    if named is None:
        try:
            a, b, c, d = (float(part) for part in text.split(","))
        except ValueError:
            allowed = ", ".join(PACES)
            raise ValueError(f"pace {text!r}: expected one of {allowed}, or four numbers A,B,C,D") from None
        named = Pace(a, b, c, d)
    if speedup <= 0:
        raise ValueError(f"speedup {speedup}: must be above 0")
    return named.faster(speedup)
