"""Large bodies parsed in pieces: a parser holds the interpreter until it is done, 30 ms for a hundred
thousand messages or a million ids, in which no stream moves."""

import re
from typing import Any

import orjson

from proxy.tokens.breath import breathe

PIECE_BYTES = 262_144
_ENDS_TRIED = 8
_MARK = "\0 the rest of this array"
# In valid JSON this is always a key: a quotation mark inside a string is escaped.
_ARRAY = re.compile(rb'"(messages|input_ids|prompt|input)"\s*:\s*\[\s*(?=([{\d]))')
_BETWEEN_OBJECTS = re.compile(rb"\}\s*,\s*(?=\{)")
_BETWEEN_NUMBERS = re.compile(rb"\d\s*,\s*(?=\d)")


def parse_piecewise(body: bytes, piece_bytes: int = PIECE_BYTES) -> Any:
    """What `orjson.loads` gives, its first long array of objects or numbers parsed piece by piece.

    None where that does not work out: parse it as a whole then.
    """
    array = _ARRAY.search(body)
    if array is None:
        return None
    between = _BETWEEN_OBJECTS if array[2] == b"{" else _BETWEEN_NUMBERS
    items, position = _leading_items(body, array.end(), between, piece_bytes)
    if not items:
        return None
    rest = b"".join((body[: array.end()], orjson.dumps(_MARK), b",", body[position:]))
    try:
        document = orjson.loads(rest)
    except orjson.JSONDecodeError:
        return None
    name = array[1].decode()
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list) or found[:1] != [_MARK]:  # a key of the same name deeper inside
        return None
    items.extend(found[1:])
    document[name] = items
    return document


def _leading_items(
    body: bytes, position: int, between: re.Pattern[bytes], piece_bytes: int
) -> tuple[list[Any], int]:
    """The items from `position` on, in pieces, and where the first that is not among them begins."""
    items: list[Any] = []
    while len(body) - position > 2 * piece_bytes:
        piece, after = _piece(body, position, between, piece_bytes)
        if not piece:
            break
        items.extend(piece)
        position = after
        breathe()
    return items, position


def _piece(body: bytes, position: int, between: re.Pattern[bytes], piece_bytes: int) -> tuple[list[Any], int]:
    """The items of one piece, and where the next begins; none when no end for it is found.

    What looks like an end may be inside a string or a deeper array, or behind the end of this one: the
    piece is no array of its own then.
    """
    search_from = position + piece_bytes
    for _ in range(_ENDS_TRIED):
        gap = between.search(body, search_from)
        if gap is None:
            break
        try:
            return orjson.loads(b"[%b]" % body[position : gap.start() + 1]), gap.end()
        except orjson.JSONDecodeError:
            search_from = gap.end()
    return [], position
