"""Client keys and the tenants they belong to: the file, and who a request comes from.

The file is TOML, one table a tenant:

    [tenants.research]
    keys = ["sha256:9f86d0...", "sk-plain-text"]
    weight = 2.0                  # its share beside others; 1 where left out
    concurrent_requests = 20      # queued and running
    resident_tokens = 200_000     # that these claim: prompts and output reserves
    tokens_per_minute = 1_000_000 # prompts and outputs

Keys are kept as digests only. They are looked up by an HMAC under a secret of this process: how
long that takes says nothing of how much of a guess was right.
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from proxy.admission.types import UNLIMITED, TenantLimits
from proxy.api.headers import first

LONGEST_TENANT = 64
DEFAULT_TENANT = "default"
_HASHED = "sha256:"
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_NAME = re.compile(rf"[A-Za-z0-9._@+-]{{1,{LONGEST_TENANT}}}")
_LIMITS = tuple(field.name for field in fields(TenantLimits))
_KNOWN = ("keys", "weight", *_LIMITS)


class KeysError(ValueError):
    """The keys file cannot be used. The text says why and never repeats a key."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whom a request is counted for."""

    name: str
    weight: float = 1.0
    limits: TenantLimits = UNLIMITED


class Keys:
    """All keys of one file."""

    def __init__(self, tenants: Mapping[bytes, Tenant]) -> None:
        """`tenants` by the SHA-256 of their keys."""
        self._secret = secrets.token_bytes(32)
        self._digests = dict(tenants)
        self._tenants = {self._blinded(digest): (digest, tenant) for digest, tenant in tenants.items()}

    def __len__(self) -> int:
        return len(self._tenants)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._digests == other._digests

    __hash__ = None  # type: ignore[assignment]

    @property
    def tenants(self) -> dict[str, Tenant]:
        """By name."""
        return {tenant.name: tenant for tenant in self._digests.values()}

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Whose key that is; None for an unknown one."""
        digest = hashlib.sha256(key).digest()
        known, tenant = self._tenants.get(self._blinded(digest), (b"", None))
        return tenant if hmac.compare_digest(known, digest) else None

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


class Door:
    """Tells tenants apart. `keys` may be replaced while requests come; None leaves the door open."""

    def __init__(self, keys: Keys | None = None, *, tenant_header: str | None = None) -> None:
        self.keys = keys
        self._tenant_header = (tenant_header or "").lower().encode()

    def tenant_of(self, headers: Iterable[tuple[bytes, bytes]]) -> Tenant | None:
        """Who sends a request with these headers; None: nobody we know.

        With keys the key alone says it; without, the header that a trusted front sets.
        """
        headers = tuple(headers)
        if self.keys is None:
            value = first(headers, self._tenant_header) if self._tenant_header else None
            return Tenant(value.decode("latin-1")[:LONGEST_TENANT] if value else DEFAULT_TENANT)
        for key in _shown(headers):
            tenant = self.keys.tenant_of(key)
            if tenant is not None:
                return tenant
        return None


def _shown(headers: tuple[tuple[bytes, bytes], ...]) -> Iterator[bytes]:
    """`x-api-key` first: beside it, Authorization may be meant for the server."""
    key = first(headers, b"x-api-key")
    if key:
        yield key.strip()
    scheme, _, bearer = (first(headers, b"authorization") or b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and bearer.strip():
        yield bearer.strip()


def read_keys(path: Path) -> Keys:
    """The keys in the file at `path`. Raises KeysError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise KeysError(f"cannot be read: {reason}") from None
    return parse_keys(text)


def parse_keys(text: str) -> Keys:
    """The keys in `text`. Raises KeysError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (.*)\)$", str(error))  # the rest may quote a key
        raise KeysError(f"is not valid TOML{f' at {place[1]}' if place else ''}") from None
    tables = document.pop("tenants", None)
    if document or not isinstance(tables, dict) or not tables:
        raise KeysError("must hold tables [tenants.NAME], and nothing else")
    owners: dict[bytes, Tenant] = {}
    for name, table in tables.items():
        tenant, digests = _tenant(name, table)
        for digest in digests:
            if digest in owners:
                raise KeysError(
                    f"a key of tenant {name} stands there twice, or is {owners[digest].name}'s too"
                )
            owners[digest] = tenant
    return Keys(owners)


def _tenant(name: str, table: object) -> tuple[Tenant, list[bytes]]:
    if not _NAME.fullmatch(name):
        raise KeysError(f"tenant {name[:80]!r}: a name has letters, digits and ._@+- only, 64 at most")
    if not isinstance(table, dict):
        raise KeysError(f"tenant {name} must be a table")
    for field in table:
        if field not in _KNOWN:
            raise KeysError(f"tenant {name}: unknown field {field[:80]!r}; known are {', '.join(_KNOWN)}")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1e6:
        raise KeysError(f"tenant {name}: weight must be a number above 0 and at most 1000000")
    limits = TenantLimits(**{field: _limit(name, table, field) for field in _LIMITS})
    keys = table.get("keys")
    if not isinstance(keys, list) or not keys:
        raise KeysError(f"tenant {name}: keys must be a list of at least one key")
    tenant = Tenant(name, float(weight), limits)
    return tenant, [_digest(name, place, key) for place, key in enumerate(keys, 1)]


def _limit(name: str, table: Mapping[str, Any], field: str) -> int | None:
    value = table.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KeysError(f"tenant {name}: {field} must be a whole number of at least 1")
    return value


def _digest(name: str, place: int, key: object) -> bytes:
    what = f"tenant {name}: key {place}"
    if not isinstance(key, str) or not key.strip():
        raise KeysError(f"{what} must be a text")
    if key.startswith(_HASHED):
        digits = key.removeprefix(_HASHED)
        if not _DIGEST.fullmatch(digits):
            raise KeysError(f"{what}: after sha256: there must be 64 hex digits")
        return bytes.fromhex(digits)
    if key != key.strip() or not key.isascii() or not key.isprintable():
        raise KeysError(f"{what} must be printable ASCII without blanks around it")
    return hashlib.sha256(key.encode()).digest()
