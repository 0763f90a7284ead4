"""The smallest edit of a client's JSON body: a few keys spliced in before its last brace.

The last of equal keys wins in every JSON parser SGLang has used, so a spliced key also replaces
the client's own, and the body is never parsed and written again.
"""

import re
from collections.abc import Collection, Iterable

from proxy.upstream.errors import BodyRefused
from proxy.upstream.sglang import STEERING, USAGE_FIELD, Steer, load_json

_BLANK = b" \t\r\n"
_NAMES = "|".join((*STEERING, USAGE_FIELD))
# Two patterns, each with a literal beginning: the engine then skips ahead instead of trying
# every byte (five times faster on a large body).
# Quotes inside JSON strings are escaped, so `"name":` can only be a key, though at any depth.
_KEY = re.compile(rb'"(?:' + _NAMES.encode() + rb')"\s*(?::|\Z)')
# A key that hides behind escapes (`"r\u0069d"`): no encoder escapes a letter or an underscore.
_HIDDEN_KEY = re.compile(rb"\\u00(?:6[1-9A-Fa-f]|7[0-9Aa]|5[Ff])")
# The engine holds the interpreter for as long as it searches: 10 ms for the worst of this.
_PIECE_BYTES = 1024 * 1024
_OVERLAP_BYTES = 64  # longer than any name; what follows one at a piece's end is taken for a colon


def screen(body: bytes, honoured: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the steering fields that the body sets at its top level and that must be overridden.
    Those that are `honoured` pass.

    Raises BodyRefused for a field that cannot be honoured, and for a body that is not one JSON
    object in UTF-8. Costs one scan (up to 10 ms a megabyte: in a thread for large ones); parses
    only a body that names such a field somewhere.
    """
    _last_brace(body)
    if not _may_name_a_field(body):
        return ()
    document = load_json(body)
    if not isinstance(document, dict):
        raise BodyRefused("the body is not a valid JSON object")
    for name, action in STEERING.items():
        if action is Steer.REFUSE and document.get(name) and name not in honoured:
            raise BodyRefused(f"{name} is not supported through this proxy", name)
    overridden = [n for n, action in STEERING.items() if action is Steer.NULL and document.get(n) is not None]
    if document.get(USAGE_FIELD) is not None:
        overridden.append(USAGE_FIELD)
    return tuple(overridden)


def _may_name_a_field(body: bytes) -> bool:
    for start in range(0, len(body), _PIECE_BYTES):
        end = start + _PIECE_BYTES + _OVERLAP_BYTES
        if _KEY.search(body, start, end) or _HIDDEN_KEY.search(body, start, end):
            return True
    return False


def splice(body: bytes, fields: Iterable[tuple[str, bytes]]) -> bytes:
    """The body with `fields` (name, JSON text) as its last keys. Raises BodyRefused as `screen`."""
    end = _last_brace(body)
    before = end - 1
    if body[before] in _BLANK:
        before = len(body[:end].rstrip(_BLANK)) - 1
    added = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields)
    if not added:
        return body
    comma = b"" if body[before] == ord("{") else b","
    parts = memoryview(body)  # which may be large: copied once
    return b"".join((parts[:end], comma, added, parts[end:]))


def _last_brace(body: bytes) -> int:
    """Where the object's closing brace is. UTF-16, a byte order mark or anything else is refused."""
    end = len(body.rstrip(_BLANK)) - 1
    start = len(body) - len(body.lstrip(_BLANK))
    if end < 1 or body[end] != ord("}") or body[start] != ord("{"):
        raise BodyRefused("the body must be one JSON object, in UTF-8 without a byte order mark")
    return end
