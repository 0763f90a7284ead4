"""Typed access to the fields of a request body.

As strict as a clear 400 needs, as lenient as the engine is: what SGLang's own models coerce (an
integral float, a number in a string) must not be refused here.
"""

from collections.abc import Mapping
from typing import Any

from proxy.tokens.shape import BadRequest

_TYPE_NAMES = {
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "an array",
    str: "a string",
    type(None): "null",
}

_BOOLEANS = {
    "true": True, "1": True, "on": True, "yes": True, "y": True, "t": True,
    "false": False, "0": False, "off": False, "no": False, "n": False, "f": False,
}  # fmt: skip


def wrong_type(value: object, wanted: str, param: str) -> BadRequest:
    """The 400 for a value of the wrong type; says what was wanted and what came."""
    return BadRequest(f"{param} must be {wanted}, not {_TYPE_NAMES.get(type(value), 'this type')}", param)


def integer(body: Mapping[str, Any], name: str, *, least: int, param: str = "") -> int | None:
    """The field as an integer of at least `least`, None when absent or null."""
    value = body.get(name)
    if value is None:
        return None
    param = param or name
    if type(value) is not int:
        value = _coerced(value, param)
    if value < least:
        raise BadRequest(f"{param} must be at least {least}, got {value}", param)
    return int(value)


def _coerced(value: object, param: str) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= 32:
        try:
            return int(value)
        except ValueError:
            raise BadRequest(f"{param} must be an integer, got {value!r}", param) from None
    raise wrong_type(value, "an integer", param)


def boolean(body: Mapping[str, Any], name: str, param: str = "") -> bool:
    """The field as a boolean, False when absent or null."""
    value = body.get(name)
    if value is None or value is False:
        return False
    if value is True:
        return True
    if type(value) is int and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    raise wrong_type(value, "a boolean", param or name)


def string(body: Mapping[str, Any], name: str, param: str = "") -> str | None:
    """The field as a string, None when absent or null."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise wrong_type(value, "a string", param or name)


def mapping(body: Mapping[str, Any], name: str, param: str = "") -> Mapping[str, Any]:
    """The field as an object, an empty one when absent or null."""
    value = body.get(name)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise wrong_type(value, "an object", param or name)


def array(body: Mapping[str, Any], name: str, param: str = "") -> list[Any]:
    """The field as an array, an empty one when absent or null."""
    value = body.get(name)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise wrong_type(value, "an array", param or name)


def label(body: Mapping[str, Any], *names: str) -> str | None:
    """The first of the fields that is a non-empty string; other types are the engine's to judge."""
    for name in names:
        value = body.get(name)
        if isinstance(value, str) and value:
            return value
    return None
