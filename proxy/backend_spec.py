"""One SGLang server to put behind the proxy, as `PROXY_BACKENDS` names it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit

Tier = Literal["default", "long"]

ALLOWED = (
    "comma-separated http(s) URLs, or a JSON list of objects with url and, where needed, "
    "name, tier (default or long), api_key, admin_key, pool_tokens"
)


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Where a server is and what the operator says about it. Keys stay out of `repr`.

    `url` has no trailing slash. `name` is unique, has no slash and labels metrics and logs.
    `pool_tokens` overrides what the server reports.
    """

    url: str
    name: str
    tier: Tier = "default"
    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    pool_tokens: int | None = None


_KEYS = tuple(f.name for f in fields(BackendSpec))


def parse_backends(text: str) -> tuple[BackendSpec, ...]:
    """What `PROXY_BACKENDS` holds, as specs in the order given.

    Raises ValueError with a message that never repeats a key.
    """
    text = text.strip()
    specs = tuple(_from_json(text) if text.startswith(("[", "{")) else _from_urls(text))
    if not specs:
        raise ValueError("names no server")
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two servers are called {name!r}: give each object a name of its own")
    return specs


def _from_urls(text: str) -> Iterable[BackendSpec]:
    for piece in text.split(","):
        if piece.strip():
            url = _checked_url(piece.strip())
            yield BackendSpec(url=url, name=_name_of(url))


def _from_json(text: str) -> Iterable[BackendSpec]:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON at character {error.pos}: {error.msg}") from None
    if not isinstance(items, list):
        raise ValueError("must be a JSON list of objects")
    for position, item in enumerate(items):
        try:
            yield _from_object(item)
        except ValueError as error:
            raise ValueError(f"entry {position}: {error}") from None


def _from_object(item: object) -> BackendSpec:
    if not isinstance(item, dict):
        raise ValueError("must be an object")
    for key in item:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(_KEYS)}")
    url = _checked_url(_text(item, "url") or "")
    tier = _text(item, "tier") or "default"
    if tier not in get_args(Tier):
        raise ValueError(f"tier {tier!r} is none of {', '.join(get_args(Tier))}")
    return BackendSpec(
        url=url,
        name=_checked_name(_text(item, "name") or _name_of(url)),
        tier=cast("Tier", tier),
        api_key=_text(item, "api_key"),
        admin_key=_text(item, "admin_key"),
        pool_tokens=_pool_tokens(item.get("pool_tokens")),
    )


def _text(item: dict[str, Any], key: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be a string")
    return value or None


def _pool_tokens(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("pool_tokens must be a whole number of at least 1")
    return value


def _checked_name(name: str) -> str:
    # A slash separates name and rank in pool ids ("box-1/0").
    if "/" in name or not name.isprintable() or len(name) > 100:
        raise ValueError(f"name {name[:100]!r} must be printable, without '/', at most 100 characters")
    return name


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"url cannot be read: {error}") from None
    if parts.username or parts.password:
        raise ValueError("url must not hold a user or password; give api_key instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"url {url!r} must look like http://host:30000")
    if any(ch.isspace() or not ch.isprintable() for ch in url) or parts.query or parts.fragment:
        raise ValueError(f"url {url!r} must be a plain address without spaces, '?' or '#'")
    trimmed = url.rstrip("/")
    if trimmed.endswith("/v1"):
        raise ValueError(f"url {url!r} must be the server's root, without /v1")
    return trimmed


def _name_of(url: str) -> str:
    parts = urlsplit(url)
    return (parts.netloc + parts.path).replace("/", "-")
