"""What sizing gives."""

from dataclasses import dataclass
from typing import NamedTuple

from proxy.admission.types import Segment
from proxy.tokens.calibration import Estimate
from proxy.tokens.chain import SEGMENT_TOKENS, Mark
from proxy.tokens.shape import Shape


@dataclass(frozen=True, slots=True)
class Sized:
    """A request with its size.

    `prompt_tokens` is the calibrated count, of all items of a batch together; `raw_tokens` the plain
    one. `least_tokens`: refuse a prompt as too large for ever only where this figure is too large.
    `exact`: counted with the model's own tokenizer and template, or given as ids.
    `segments`: see `proxy.admission.types.Request`.
    `text_class`: the largest part of the prompt. `by_model`: `raw_tokens` is meant to be the server's own
    count. `estimate`: how the figure came about, None when it is exact or the vocabulary was not loaded
    yet. `conversation`: the key of all messages, None for other prompts.
    """

    shape: Shape
    prompt_tokens: int
    raw_tokens: int
    least_tokens: int
    exact: bool
    segments: tuple[Segment, ...]
    text_class: str
    body_bytes: int
    by_model: bool = False
    estimate: Estimate | None = None
    conversation: bytes | None = None


class SizerStats(NamedTuple):
    """For /admission/status: what counts, what was learnt, and how often counting fell back.

    `tokenizer` is `o200k_base`, or the engine that runs the model's own; `note` says why that is not
    used, or not for chats. `ratios`: true tokens per counted one by model, for counts that are
    estimates; `exact_ratios` for those that should be exact: off 1 means a wrong tokenizer directory.
    `image_families`: whose image rule counts for each model, "*" for all.
    """

    ready: bool
    tokenizer: str
    note: str | None
    ratios: dict[str, float]
    exact_ratios: dict[str, float]
    samples: dict[str, int]
    sized: int
    sampled: int
    failures: int
    memo_entries: int
    backlog_bytes: int
    bytes_per_token: float
    image_families: dict[str, str]


# Segments come in few sizes: one int object for each instead of one for each segment.
_SIZES = tuple(range(8 * SEGMENT_TOKENS))


def scaled_segments(marks: tuple[Mark, ...], scale: float) -> tuple[Segment, ...]:
    """Segments in calibrated tokens; rounding down keeps their sum within the prompt's."""
    found, start = [], 0
    for mark in marks:
        tokens = int((mark.tokens - start) * scale)
        found.append(Segment(mark.key, _SIZES[tokens] if tokens < len(_SIZES) else tokens))
        start = mark.tokens
    return tuple(found)
