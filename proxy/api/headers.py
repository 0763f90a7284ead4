"""Header hygiene: what of a client's headers reaches SGLang."""

import re
from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
#: Set anew for the upstream connection, or meant for us alone.
_OURS = frozenset(
    {b"host", b"content-length", b"expect", b"x-request-timeout-ms", b"x-admission-progress", b"x-api-key"}
)
#: They steer the engine: routing between DP ranks, overriding request fields, LoRA, bootstrap, and
#: how the body is to be read: the proxy has read it as JSON.
_STEERING_PREFIXES = (
    b"x-override-",
    b"x-data-parallel-",
    b"x-sglang-",
    b"x-bootstrap-",
    b"x-admission-",
    b"x-body-compressed",
)

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def forwarded(headers: Iterable[tuple[bytes, bytes]], *, authorization: bool) -> Headers:
    """The client's headers without hop-by-hop, steering and our own ones.

    `authorization`: pass the client's Authorization on to the backend.
    """
    pairs = list(headers)
    named = {
        token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")
    }
    return [
        (name, value)
        for name, value in pairs
        if name not in _HOP_BY_HOP
        and name not in _OURS
        and name not in named
        and not name.startswith(_STEERING_PREFIXES)
        and (authorization or name != b"authorization")
    ]


def with_ours(theirs: Headers, ours: Headers) -> Headers:
    """A backend's headers and ours; ours replace what it sent under the same name."""
    names = {name for name, _ in ours}
    return [*(item for item in theirs if item[0].lower() not in names), *ours]


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of header `name` (lower case), None when absent."""
    return next((value for key, value in headers if key == name), None)


def request_id(headers: Iterable[tuple[bytes, bytes]], otherwise: str) -> str:
    """The client's own `x-request-id` where it is short and printable, else ours."""
    value = first(headers, b"x-request-id")
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value.decode("ascii")
    return otherwise


def wait_limit_seconds(
    headers: Iterable[tuple[bytes, bytes]], default_seconds: float, most_seconds: float
) -> float:
    """`x-request-timeout-ms` in seconds, within the operator's limit; the default when absent or odd."""
    value = first(headers, b"x-request-timeout-ms")
    if value is None:
        return default_seconds
    try:
        milliseconds = float(value)
    except ValueError:
        return default_seconds
    if not 0 <= milliseconds < float("inf"):
        return default_seconds
    return min(milliseconds / 1000, most_seconds)
