"""The raw size of a prompt by the default rules: its texts, and a few tokens around them."""

from typing import NamedTuple

from proxy.tokens.chain import Chain, Mark
from proxy.tokens.counter import MEMO_LEAST_CHARS, Counter, utf8
from proxy.tokens.shape import Prompt, Shape, Unit
from proxy.tokens.textclass import text_class

_RECENT_UNITS = 64  # ends of units at which an earlier turn of the conversation is looked for
_SAMPLES = 16


class Measured(NamedTuple):
    """The raw count of a prompt. `segments` are the ends of its segments, `units` those of its last
    units (the last of which opens the reply). `exact`: nothing in it is an estimate."""

    tokens: int
    segments: tuple[Mark, ...]
    units: tuple[Mark, ...]
    text_class: str
    exact: bool = False


def new_chain(counter: Counter, shape: Shape, *, body_bytes: int, sampled: bool) -> Chain:
    """A chain for one prompt of a request."""
    root = utf8("\0".join((shape.model, *shape.cache_scope)))
    return Chain(counter, root, sampled=sampled, sample_every=max(MEMO_LEAST_CHARS, body_bytes // _SAMPLES))


def measure(counter: Counter, shape: Shape, prompt: Prompt, *, body_bytes: int, sampled: bool) -> Measured:
    """Counts all items of `prompt`. The prompts of a batch share no segments with other requests.

    `sampled`: what is not remembered is estimated from a part of it (30 times faster, 1-2 % off).
    """
    tokens, sample = 0, b""
    segments: tuple[Mark, ...] = ()
    units: tuple[Mark, ...] = ()
    for item in prompt.items:
        chain = new_chain(counter, shape, body_bytes=body_bytes, sampled=sampled)
        marks = _add_units(chain, item)
        tokens += chain.tokens
        sample = sample or b"".join(chain.sample)
        if len(prompt.items) == 1:
            segments, units = tuple(chain.segments), tuple(marks)
    kind = text_class(sample, tools=prompt.tools, media=shape.media > 0)
    return Measured(tokens, segments, units, kind, exact=shape.has_ids and shape.media == 0)


def _add_units(chain: Chain, units: list[Unit]) -> list[Mark]:
    marks = []
    recent = len(units) - _RECENT_UNITS
    for index, unit in enumerate(units):
        chain.label(unit.label, unit.overhead_tokens)
        for text in unit.texts:
            chain.text(text)
        for medium in unit.media or ():
            chain.digest(medium.digest, medium.tokens)
        if unit.ids is not None:
            chain.ids(unit.ids)
        chain.close()
        if index >= recent:
            marks.append(Mark(chain.key(), chain.tokens))
    return marks
