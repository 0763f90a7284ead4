"""From the bytes of a request to its JSON object."""

import re
from typing import Any

import orjson

from proxy.tokens.breath import breathe
from proxy.tokens.piecewise import PIECE_BYTES, parse_piecewise
from proxy.tokens.shape import BadRequest

# A backslash and what it escapes: a surrogate pair, a lone surrogate, or anything else.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# The parser runs in one stretch in which no other thread does: 25 ms for this many objects. Text
# with as many brackets in it is longer than any context.
_MOST_CONTAINERS = 500_000
_COUNTED_BYTES = 1_048_576  # between two pauses: 1 ms
_MOST_SURROGATES = 10_000  # cut emoji here and there, not a text of them


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Lone surrogates in escapes, which orjson refuses and SGLang takes, are read as U+FFFD.
    Raises BadRequest for what is not a JSON object, is nested more than 1,024 deep, or holds more
    than half a million objects and arrays, or ten thousand lone surrogates.
    """
    if len(body) > 2 * _MOST_CONTAINERS and _containers(body) > _MOST_CONTAINERS:
        raise BadRequest("the request body holds too many objects and arrays")
    document = parse_piecewise(body) if len(body) > 4 * PIECE_BYTES else None
    if document is None:
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            document = _second_try(body, error)
    if not isinstance(document, dict):
        raise BadRequest("the request body must be a JSON object")
    return document


def _containers(body: bytes) -> int:
    """At most so many objects and arrays are in `body`, more where its texts hold brackets."""
    found = 0
    for start in range(0, len(body), _COUNTED_BYTES):
        end = start + _COUNTED_BYTES
        found += body.count(b"{", start, end) + body.count(b"[", start, end)
        breathe()
    return found


def _second_try(body: bytes, error: orjson.JSONDecodeError) -> Any:
    if _SURROGATE.search(body) is None:
        raise _not_json(error)
    repaired, found = bytearray(body), 0
    for count, escape in enumerate(_ESCAPE.finditer(body)):
        if count % 1_024 == 0:
            breathe()
        if escape[1]:
            found += 1
            if found > _MOST_SURROGATES:
                raise BadRequest("the request body holds too many lone surrogates")
            repaired[escape.start() + 2 : escape.end()] = b"fffd"
    try:
        return orjson.loads(repaired)
    except orjson.JSONDecodeError as again:
        raise _not_json(again) from None


def _not_json(error: orjson.JSONDecodeError) -> BadRequest:
    return BadRequest(f"the request body is not valid JSON: {error.msg} (position {error.pos})")
