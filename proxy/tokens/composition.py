"""What a count is made of, as the calibration sees it."""

from collections.abc import Sequence

from proxy.tokens.textclass import KINDS

OVERHEAD = len(KINDS)  # what the template puts around messages and calls
TOOLS = OVERHEAD + 1  # some templates print them differently, some leave them out
MEDIA = TOOLS + 1
# The rest are no tokens of the count.
DIGITS = MEDIA + 1  # decimal digits: one token each for some models, a third of one for o200k_base
CONSTANT = DIGITS + 1  # 1 for every whole prompt: a template's own text
COMPONENTS = (*KINDS, "overhead", "tools", "media", "digits", "constant")

Composition = Sequence[float]
"""Counted tokens by component, then the number of digits, then 1 for a whole prompt, 0 for a part."""


def tokens_of(composition: Composition) -> float:
    """All that was counted."""
    return sum(composition[:DIGITS])


def largest(composition: Composition) -> str:
    """The name of the component with the most tokens."""
    return COMPONENTS[max(range(DIGITS), key=composition.__getitem__)]
