"""Keys: read from the file or refused with a reason, found again, and never shown."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.types import UNLIMITED, TenantLimits
from proxy.api.keys import Door, Keys, KeysError, Tenant, parse_keys, read_keys

SECRET = "sk-very-secret"
DIGEST = hashlib.sha256(b"hashed-one").hexdigest()
FILE = f"""
[tenants.research]
keys = ["{SECRET}", "sha256:{DIGEST}"]
weight = 2.5
concurrent_requests = 20
resident_tokens = 200_000
tokens_per_minute = 1_000_000

[tenants.others]
keys = ["sk-other"]
"""
RESEARCH = Tenant("research", 2.5, TenantLimits(20, 200_000, 1_000_000))


def shown(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


def error_of(text: str) -> str:
    with pytest.raises(KeysError) as caught:
        parse_keys(text)
    return str(caught.value)


@pytest.mark.parametrize("key", [SECRET, "hashed-one"])
def test_plain_and_hashed_keys_lead_to_their_tenant(key: str) -> None:
    assert parse_keys(FILE).tenant_of(key.encode()) == RESEARCH


def test_a_tenant_without_limits_has_none_and_weighs_one() -> None:
    assert parse_keys(FILE).tenant_of(b"sk-other") == Tenant("others", 1.0, UNLIMITED)


@given(st.binary(max_size=200))
def test_any_other_key_is_unknown(key: bytes) -> None:
    keys = Keys({hashlib.sha256(SECRET.encode()).digest(): RESEARCH})
    assert keys.tenant_of(key) is None


def test_a_digest_is_not_a_key() -> None:
    keys = parse_keys(FILE)
    assert keys.tenant_of(f"sha256:{DIGEST}".encode()) is None
    assert keys.tenant_of(DIGEST.encode()) is None
    assert keys.tenant_of(bytes.fromhex(DIGEST)) is None


def test_the_same_file_gives_equal_keys_and_another_does_not() -> None:
    assert parse_keys(FILE) == parse_keys(FILE)
    assert parse_keys(FILE) != parse_keys(FILE.replace("2.5", "2"))
    assert parse_keys(FILE) != FILE


def test_no_key_is_kept_or_shown() -> None:
    keys = parse_keys(FILE)
    everything = repr(keys) + repr(vars(keys)) + repr(keys.tenants)
    assert SECRET not in everything


# --- who it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        shown(authorization=f"Bearer {SECRET}"),
        shown(authorization=f"bearer   {SECRET} "),
        shown(x_api_key=SECRET),
        shown(x_api_key=SECRET, authorization="Bearer meant-for-the-server"),
        shown(x_api_key="unknown", authorization=f"Bearer {SECRET}"),
    ],
)
def test_a_key_is_taken_as_bearer_or_as_x_api_key(headers: list[tuple[bytes, bytes]]) -> None:
    assert Door(parse_keys(FILE)).tenant_of(headers) == RESEARCH


@pytest.mark.parametrize(
    "headers",
    [
        [],
        shown(authorization="Bearer"),
        shown(authorization="Bearer "),
        shown(authorization=f"Basic {SECRET}"),
        shown(authorization=SECRET),
        shown(x_api_key=""),
        shown(x_api_key=SECRET + "x"),
        shown(x_tenant="research"),
    ],
)
def test_nobody_comes_in_with_anything_else(headers: list[tuple[bytes, bytes]]) -> None:
    assert Door(parse_keys(FILE), tenant_header="x-tenant").tenant_of(headers) is None


def test_beside_keys_the_tenant_header_says_nothing() -> None:
    door = Door(parse_keys(FILE), tenant_header="X-Tenant")
    assert door.tenant_of(shown(x_api_key="sk-other", x_tenant="research")) == Tenant("others")


def test_without_keys_all_come_in_and_a_front_may_name_the_tenant() -> None:
    door = Door(None, tenant_header="X-Tenant")
    assert door.tenant_of(shown(x_tenant="t" * 100)) == Tenant("t" * 64)
    assert door.tenant_of([]) == Tenant("default")
    assert Door().tenant_of(shown(x_tenant="a", authorization="Bearer b")) == Tenant("default")


# --- files that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must hold tables"),
        ("[tenants]", "must hold tables"),
        ("tenants = 3", "must hold tables"),
        ("[tenants.a]\nkeys = ['k']\n[more]", "nothing else"),
        ("[tenants.a]", "tenant a: keys must be a list"),
        ("[tenants.a]\nkeys = []", "at least one key"),
        ("[tenants]\na = 3", "tenant a must be a table"),
        ("[tenants.a]\nkeys = [3]", "tenant a: key 1 must be a text"),
        ("[tenants.a]\nkeys = ['k', ' ']", "tenant a: key 2 must be a text"),
        ("[tenants.a]\nkeys = ['k ']", "without blanks"),
        ("[tenants.a]\nkeys = ['sha256:12']", "64 hex digits"),
        (
            "[tenants.a]\nkeys = ['k']\nlimit = 3",
            "unknown field 'limit'; known are keys, weight, concurrent_re",
        ),
        ("[tenants.a]\nkeys = ['k']\nweight = 0", "weight must be a number above 0"),
        ("[tenants.a]\nkeys = ['k']\nweight = true", "weight must be a number"),
        ("[tenants.a]\nkeys = ['k']\nweight = nan", "weight must be a number"),
        ("[tenants.a]\nkeys = ['k']\nresident_tokens = 0", "resident_tokens must be a whole number"),
        ("[tenants.a]\nkeys = ['k']\nresident_tokens = 1.5", "resident_tokens must be a whole number"),
        ("[tenants.a]\nkeys = ['k']\nconcurrent_requests = true", "concurrent_requests must be a whole"),
        (
            "[tenants.a]\nkeys = ['k']\n[tenants.b]\nkeys = ['k']",
            "a key of tenant b stands there twice, or is a's",
        ),
        ("[tenants.'a b']\nkeys = ['k']", "a name has letters"),
        ("[tenants.a]\nkeys = ['k'", "is not valid TOML at"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    assert why in error_of(text)


@pytest.mark.parametrize(
    "text",
    [
        f"[tenants.a]\nkeys = ['{SECRET}', '{SECRET}']",
        f"[tenants.a]\nkeys = ['{SECRET} ']",
        f"[tenants.a]\nkeys = ['sha256:{SECRET}']",
        f"[tenants.a]\nkeys = [{SECRET}]",
        f"[tenants.a]\nkeys = '{SECRET}'",
    ],
)
def test_no_error_repeats_a_key(text: str) -> None:
    assert SECRET not in error_of(text)


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="No such file"):
        read_keys(tmp_path / "none")
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(KeysError, match="UTF-8"):
        read_keys(tmp_path / "keys")


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(FILE)
    assert len(read_keys(tmp_path / "keys.toml")) == 3
