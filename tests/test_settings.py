import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from proxy.settings import (
    BackendSpec,
    Settings,
    SettingsError,
    load_settings,
    pending_variables,
    unknown_variables,
)
from proxy.settings_sections import PENDING, SECTIONS
from proxy.settings_text import default_text, help_text, variable

# The contract: what operators already have in their unit files must go on meaning the same.
DEFAULTS: dict[str, object] = {
    "PROXY_HOST": "127.0.0.1",
    "PROXY_PORT": 8080,
    "PROXY_TOKENIZER_PATH": None,
    "PROXY_POOL_TOKENS": None,
    "PROXY_POOL_HEADROOM": 0.03,
    "PROXY_SHORT_PREFILL_TOKENS": 8192,
    "PROXY_EXPRESS_SHARE": 0.10,
    "PROXY_MAX_LONG_PREFILLS": 1,
    "PROXY_PREFILL_SLICE_SECONDS": 0.25,
    "PROXY_PREFILL_SLICE_MAX_TOKENS": None,
    "PROXY_MAX_BYPASS_SECONDS": 15,
    "PROXY_BYPASS_BUDGET": 0.25,
    "PROXY_MAX_QUEUE_SECONDS": 60,
    "PROXY_MAX_QUEUE_SECONDS_LIMIT": 600,
    "PROXY_MAX_PROMPT_TOKENS": None,
    "PROXY_MAX_LONG_CONTEXTS": None,
    "PROXY_LONG_TIER_TOKENS": None,
    "PROXY_MAX_QUEUE_REQUESTS": 1000,
    "PROXY_MAX_QUEUE_TOKENS": None,
    "PROXY_OUTPUT_RESERVE_QUANTILE": 0.8,
    "PROXY_OUTPUT_RESERVE_CAP": 4096,
    "PROXY_SESSION_HOLD_SECONDS": 10,
    "PROXY_POLL_SECONDS": 0.25,
    "PROXY_MODE": "enforce",
    "PROXY_API_KEYS_FILE": None,
    "PROXY_ADMIN_KEY": None,
    "PROXY_TENANT_HEADER": None,
    "PROXY_FORWARD_AUTHORIZATION": False,
    "PROXY_BACKEND_API_KEY": None,
    "PROXY_BACKEND_ADMIN_KEY": None,
    "PROXY_ADMIN_HOST": None,
    "PROXY_ADMIN_PORT": None,
    "PROXY_CHAT_TEMPLATE": None,
    "PROXY_CONNECT_SECONDS": 5,
    "PROXY_STALL_SECONDS": 300,
    "PROXY_IMAGE_FAMILY": None,
    "PROXY_CALIBRATE_STREAMS": 0.05,
    "PROXY_LOG_LEVEL": "info",
    "PROXY_LOG_FORMAT": "text",
    "PROXY_MAX_BODY_BYTES": 67_108_864,
    "PROXY_DRAIN_SECONDS": 30,
    "PROXY_DECISION_LOG": None,
    "PROXY_STRICT_MODELS": False,
    "PROXY_SETTINGS_FILE": None,
}


def value_of(settings: Settings, name: str) -> object:
    return getattr(settings, name.removeprefix("PROXY_").lower())


def error_of(**environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_are_those_of_the_contract() -> None:
    settings = load_settings({})
    assert {name: value_of(settings, name) for name in DEFAULTS} == DEFAULTS
    assert settings.backends == (BackendSpec("http://127.0.0.1:30000", "127.0.0.1:30000"),)


def test_there_is_no_variable_beyond_the_contract() -> None:
    assert {variable(name) for name in Settings.model_fields} == {*DEFAULTS, "PROXY_BACKENDS"}


def test_every_variable_says_what_it_means_and_when_to_change_it() -> None:
    text = help_text(SECTIONS)
    for name, field in Settings.model_fields.items():
        assert f"{variable(name)}  (default: {default_text(field)})" in text
    assert text.count("Change it when: ") == len(Settings.model_fields)
    assert "Change it when: \n" not in text
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("PROXY_PORT", "9000", 9000),
        ("PROXY_POOL_HEADROOM", " 0.05 ", 0.05),
        ("PROXY_FORWARD_AUTHORIZATION", "true", True),
        ("PROXY_MODE", "shadow", "shadow"),
        ("PROXY_PREFILL_SLICE_MAX_TOKENS", "0", 0),
        ("PROXY_DECISION_LOG", "/var/log/d.jsonl", Path("/var/log/d.jsonl")),
        ("PROXY_TENANT_HEADER", "x-tenant", "x-tenant"),
        ("PROXY_MAX_QUEUE_TOKENS", "", None),
    ],
)
def test_a_variable_is_read(name: str, text: str, value: object) -> None:
    assert value_of(load_settings({name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("PROXY_PORT", "http", "a whole number, at least 0 and at most 65535"),
        ("PROXY_PORT", "65536", "a whole number, at least 0 and at most 65535"),
        ("PROXY_POOL_HEADROOM", "inf", "a number, at least 0 and at most 0.5"),
        ("PROXY_POOL_HEADROOM", "nan", "a number, at least 0 and at most 0.5"),
        ("PROXY_OUTPUT_RESERVE_QUANTILE", "0", "a number, above 0 and at most 1"),
        ("PROXY_MAX_LONG_PREFILLS", "0", "a whole number, at least 1 and at most 64"),
        ("PROXY_MODE", "on", "enforce, shadow or off"),
        ("PROXY_LOG_FORMAT", "xml", "text or json"),
        ("PROXY_FORWARD_AUTHORIZATION", "perhaps", "true or false"),
        ("PROXY_TOKENIZER_PATH", "/does/not/exist", "an existing directory"),
        ("PROXY_API_KEYS_FILE", "/does/not/exist", "an existing file"),
        ("PROXY_TENANT_HEADER", "x tenant", "a header name"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    assert error_of(**{name: text}) == f"{name}={text!r}: allowed is {allowed}"


def test_further_wrong_variables_are_named_too() -> None:
    assert error_of(PROXY_PORT="x", PROXY_MODE="y").endswith("(also wrong: PROXY_MODE)")


def test_a_long_value_with_line_breaks_stays_one_short_line() -> None:
    assert len(error_of(PROXY_PORT="a\nb" * 1000)) < 300


def test_a_promise_above_its_limit_is_refused() -> None:
    assert error_of(PROXY_MAX_QUEUE_SECONDS="900") == (
        "PROXY_MAX_QUEUE_SECONDS=900: allowed is at most PROXY_MAX_QUEUE_SECONDS_LIMIT (600)"
    )
    load_settings({"PROXY_MAX_QUEUE_SECONDS": "900", "PROXY_MAX_QUEUE_SECONDS_LIMIT": "900"})


def test_an_admin_host_alone_is_refused() -> None:
    assert "needs PROXY_ADMIN_PORT" in error_of(PROXY_ADMIN_HOST="10.0.0.1")
    assert load_settings({"PROXY_ADMIN_PORT": "9"}).admin_address == ("127.0.0.1", 9)
    assert load_settings({}).admin_address is None


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_settings({}).port = 1


def test_building_settings_directly_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_PORT", "1234")
    assert Settings().port == 8080
    assert load_settings().port == 1234


def test_unknown_names_are_reported_with_the_nearest_known() -> None:
    assert unknown_variables({"PROXY_MAX_QUEU_SECONDS": "1", "PROXY_PORT": "1", "PATH": "/bin"}) == [
        "unknown variable 'PROXY_MAX_QUEU_SECONDS' is ignored; the nearest known is PROXY_MAX_QUEUE_SECONDS"
    ]


def test_a_variable_without_effect_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "port"
    monkeypatch.setattr("proxy.settings.PENDING", frozenset({name}))
    assert pending_variables({variable(name): "1"}) == [f"{variable(name)} has no effect in this version"]
    assert pending_variables({}) == []
    assert help_text(SECTIONS, {name}).count("(No effect yet.)") == 1


def test_every_variable_is_used_or_said_to_have_no_effect() -> None:
    package = Path(__file__).parents[1] / "proxy"
    if not (package / "app.py").exists():
        pytest.skip("proxy/app.py, which uses them, is not there yet")
    source = "".join(
        path.read_text()
        for path in package.rglob("*.py")
        if not path.name.startswith(("settings_", "backend_"))
    )
    used = {"settings_file"}  # it is read before there are settings
    used |= {name for name in Settings.model_fields if re.search(rf"\b(settings|self)\.{name}\b", source)}
    assert sorted(used & PENDING - {"mode"}) == []  # the mode is shown by a metric already
    assert sorted(set(Settings.model_fields) - used - PENDING) == []


def test_keys_are_never_shown() -> None:
    settings = load_settings(
        {
            "PROXY_ADMIN_KEY": "secret-1",
            "PROXY_BACKEND_API_KEY": "secret-2",
            "PROXY_BACKEND_ADMIN_KEY": "secret-3",
            "PROXY_BACKENDS": '[{"url": "http://a:1", "api_key": "secret-4", "admin_key": "secret-5"}]',
        }
    )
    assert "secret" not in repr(settings) + str(settings) + repr(settings.backend_specs())


@pytest.mark.parametrize(
    "text",
    [
        '[{"url": "http://a:1", "api_key": "secret" ',
        '[{"url": "http://a:1", "apikey": "secret"}]',
        '[{"url": "ftp://a:1", "api_key": "secret"}]',
        "http://me:secret@a:1",
        '[{"url": "http://me:secret@a:1"}]',
    ],
)
def test_an_error_in_backends_does_not_show_keys(text: str) -> None:
    message = error_of(PROXY_BACKENDS=text)
    assert message.startswith("PROXY_BACKENDS=")
    assert "secret" not in message


def test_backends_as_a_list_of_urls() -> None:
    settings = load_settings({"PROXY_BACKENDS": "http://a:30000/, https://b.example/sglang ,"})
    assert settings.backends == (
        BackendSpec("http://a:30000", "a:30000"),
        BackendSpec("https://b.example/sglang", "b.example-sglang"),
    )


def test_backends_as_json_take_what_they_lack_from_the_settings_for_all() -> None:
    settings = load_settings(
        {
            "PROXY_BACKENDS": '[{"url": "http://a:1", "name": "big", "tier": "long", "api_key": "own",'
            ' "pool_tokens": 1000}, {"url": "http://b:1"}]',
            "PROXY_BACKEND_API_KEY": "shared",
            "PROXY_BACKEND_ADMIN_KEY": "admin",
            "PROXY_POOL_TOKENS": "500",
        }
    )
    assert settings.backend_specs() == (
        BackendSpec("http://a:1", "big", "long", "own", "admin", 1000),
        BackendSpec("http://b:1", "b:1", "default", "shared", "admin", 500),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (",", "names no server"),
        ("a:30000", "must look like http://host:30000"),
        ("http://a:1/v1", "without /v1"),
        ("http://a:99999", "url cannot be read"),
        ("http://a:0", "must look like"),
        ("http://a b:1", "plain address"),
        ("http://a:1?x=1", "plain address"),
        ("http://a:1,http://a:1", "two servers are called 'a:1'"),
        ('{"url": "http://a"}', "must be a JSON list of objects"),
        ("[1]", "entry 0: must be an object"),
        ('[{"url": 1}]', "entry 0: url must be a string"),
        ('[{"name": "x"}]', "entry 0: url '' must look like"),
        ('[{"url": "http://a", "name": "x/0"}]', "without '/'"),
        ('[{"url": "http://a", "tier": "short"}]', "tier 'short' is none of default, long"),
        ('[{"url": "http://a", "pool_tokens": 0}]', "pool_tokens must be a whole number"),
        ('[{"url": "http://a", "pool_tokens": true}]', "pool_tokens must be a whole number"),
        ('[{"url": "http://a", "weight": 1}]', "unknown key 'weight'"),
    ],
)
def test_wrong_backends_say_what_is_wrong(text: str, what: str) -> None:
    assert what in error_of(PROXY_BACKENDS=text)


def test_settings_are_light_to_import() -> None:
    code = "import proxy.settings, sys; print('starlette' in sys.modules, 'httpx' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert out.stdout.split() == ["False", "False"]


# --- a file of settings ---------------------------------------------------------------------------


def in_file(path: Path, text: str, **environ: str) -> Settings:
    path.write_text(text)
    return load_settings({"PROXY_SETTINGS_FILE": str(path), **environ})


def test_lines_of_the_settings_file_win_over_the_environment(tmp_path: Path) -> None:
    text = "# a remark\n\n PROXY_PORT = 9 \nPROXY_MODE='shadow'\nPROXY_HOST=\"::1\"\nPROXY_ADMIN_PORT=\n"
    settings = in_file(tmp_path / "s", text, PROXY_PORT="8", PROXY_POLL_SECONDS="1", PROXY_ADMIN_PORT="7")
    assert (settings.port, settings.mode, settings.host, settings.poll_seconds) == (9, "shadow", "::1", 1)
    assert settings.admin_port is None  # empty is unset
    assert settings.settings_file == tmp_path / "s"


def test_unknown_names_in_the_file_are_reported_too(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("PROXY_PROT=9")
    (warning,) = unknown_variables({"PROXY_SETTINGS_FILE": str(tmp_path / "s")})
    assert "PROXY_PROT" in warning


@pytest.mark.parametrize(
    "line", ["secret", "PATH=/bin", "export PROXY_PORT=9", "PROXY_SETTINGS_FILE=other", "proxy_port=secret"]
)
def test_a_line_that_is_no_setting_is_named_by_its_number_and_not_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError, match=r"line 2 is not PROXY_NAME=value$") as caught:
        in_file(tmp_path / "s", f"PROXY_PORT=9\n{line}\n")
    assert "secret" not in str(caught.value)


def test_a_wrong_value_in_the_file_is_named_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^PROXY_PORT='x': allowed is"):
        in_file(tmp_path / "s", "PROXY_PORT=x")


def test_a_settings_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "an existing file"), (tmp_path, "cannot be read")):
        with pytest.raises(SettingsError, match=f"PROXY_SETTINGS_FILE=.*{why}"):
            load_settings({"PROXY_SETTINGS_FILE": str(path)})
    (tmp_path / "s").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings({"PROXY_SETTINGS_FILE": str(tmp_path / "s")})
