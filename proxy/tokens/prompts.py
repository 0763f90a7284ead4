"""Prompts that are plain text or token ids, alone or in a batch, and what the readers share."""

from typing import Any

from proxy.tokens.fields import wrong_type
from proxy.tokens.shape import BadRequest, Unit

_ID_SLICE = 65_536  # ids are checked in slices, so that the thread lets others run in between
_LARGEST_ID = 2**31 - 1
_WANTED = "a string, an array of strings, an array of token ids, or an array of such arrays"


def read_prompts(value: object, param: str) -> tuple[list[list[Unit]], int | None]:
    """The items of a prompt in any of its four forms, and the largest token id (None without ids).

    Raises BadRequest for an empty prompt, mixed forms, and ids that are negative or no integers.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise wrong_type(value, _WANTED, param)
    if not value or not any(isinstance(item, int) or item for item in value):
        raise BadRequest(f"{param} must not be empty", param)
    first = value[0]
    if isinstance(first, int):
        return [[Unit("ids", ids=value)]], largest_id(value, param)
    if isinstance(first, str):
        if not all(isinstance(item, str) for item in value):
            raise BadRequest(f"{param} must be {_WANTED}", param)
        return [[Unit("text", [item])] for item in value], None
    if isinstance(first, list):
        largest = max(largest_id(item, f"{param}[{index}]") for index, item in enumerate(value))
        return [[Unit("ids", ids=item)] for item in value], largest
    raise BadRequest(f"{param} must be {_WANTED}", param)


def largest_id(ids: object, param: str) -> int:
    """The largest of a prompt's token ids. Raises BadRequest unless it is a non-empty list of
    integers >= 0."""
    if not isinstance(ids, list) or not ids:
        raise BadRequest(f"{param} must be a non-empty array of token ids", param)
    largest = 0
    for start in range(0, len(ids), _ID_SLICE):
        piece = ids[start : start + _ID_SLICE]
        if set(map(type, piece)) != {int}:
            raise BadRequest(f"{param} must hold integers only", param)
        if min(piece) < 0:
            raise BadRequest(f"{param} holds a negative token id", param)
        top = max(piece)
        if top > _LARGEST_ID:
            raise BadRequest(f"{param} holds a number that is no token id", param)
        largest = max(largest, top)
    return largest


def media_count(items: list[list[Unit]]) -> int:
    """How many images, videos, clips and files a prompt holds."""
    return sum(len(unit.media) for units in items for unit in units if unit.media)


def media_tokens(items: list[list[Unit]]) -> int:
    """The tokens of all of them."""
    return sum(medium.tokens for units in items for unit in units if unit.media for medium in unit.media)


def cache_scope(body: dict[str, Any]) -> tuple[str, ...]:
    """What keeps equal prompts apart in the engine's prefix cache: adapter, extra key, salt."""
    names = ("lora_path", "extra_key", "cache_salt")
    return tuple(f"{name}={body[name]}" for name in names if body.get(name))
