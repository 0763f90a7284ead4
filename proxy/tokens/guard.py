"""Calls into tokenizers: whatever they raise is one exception, their panics too.

A panic of Rust code is a BaseException whose class cannot be imported; nothing above expects one.
"""

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class EncoderFailed(Exception):
    """A tokenizer could not encode a text; the message is the name of what it raised."""


def guarded(encode: Callable[[str], Result], text: str) -> Result:
    """What `encode` makes of `text`. Raises EncoderFailed."""
    try:
        return encode(text)
    except Exception as error:
        raise EncoderFailed(type(error).__name__) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise EncoderFailed("PanicException") from error
