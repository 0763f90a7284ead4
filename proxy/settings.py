"""The configuration: read from the environment, checked once, then immutable."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from pydantic import SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.sources import EnvSettingsSource

from proxy.backend_spec import BackendSpec
from proxy.settings_sections import (
    PENDING,
    ClientSettings,
    CountSettings,
    LaneSettings,
    ListenSettings,
    MemorySettings,
    QueueSettings,
    ReloadSettings,
    SeeingSettings,
    ServerSettings,
)
from proxy.settings_text import SettingsError, error_line, variable

__all__ = [
    "BackendSpec",
    "Settings",
    "SettingsError",
    "load_settings",
    "pending_variables",
    "unknown_variables",
    "with_file",
]


SETTINGS_FILE = "PROXY_SETTINGS_FILE"
_NAME = re.compile(r"PROXY_[A-Z0-9_]+")


class Settings(
    SeeingSettings,
    ReloadSettings,
    ClientSettings,
    QueueSettings,
    LaneSettings,
    MemorySettings,
    CountSettings,
    ListenSettings,
    ServerSettings,
    BaseSettings,
):
    """All sections together. Building it directly never reads the environment: `load_settings` does."""

    model_config = SettingsConfigDict(
        env_prefix="PROXY_", frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_queue_seconds > self.max_queue_seconds_limit:
            raise ValueError(
                f"PROXY_MAX_QUEUE_SECONDS={self.max_queue_seconds:g}: allowed is at most "
                f"PROXY_MAX_QUEUE_SECONDS_LIMIT ({self.max_queue_seconds_limit:g})"
            )
        if self.admin_host is not None and self.admin_port is None:
            raise ValueError(f"PROXY_ADMIN_HOST={self.admin_host!r}: needs PROXY_ADMIN_PORT as well")
        return self

    def backend_specs(self) -> tuple[BackendSpec, ...]:
        """The backends, with the settings for all of them filled in where one says nothing itself."""
        return tuple(
            BackendSpec(
                url=spec.url,
                name=spec.name,
                tier=spec.tier,
                api_key=spec.api_key or _revealed(self.backend_api_key),
                admin_key=spec.admin_key or _revealed(self.backend_admin_key),
                pool_tokens=spec.pool_tokens or self.pool_tokens,
            )
            for spec in self.backends
        )

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Host and port of the second listener; None when there is none."""
        return None if self.admin_port is None else (self.admin_host or "127.0.0.1", self.admin_port)


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in `environ` (default: the process's). An empty value counts as unset.

    Raises SettingsError: one line with the variable, its value and what is allowed.
    """
    environ = with_file(os.environ if environ is None else environ)
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value.strip() for name, value in environ.items() if value.strip()}
    try:
        return Settings(**source())
    except ValidationError as error:
        raise SettingsError(error_line(Settings, error.errors(), source.env_vars)) from None


def with_file(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, with the lines of `PROXY_SETTINGS_FILE` over it. Raises SettingsError."""
    path = environ.get(SETTINGS_FILE, "").strip()
    if not path:
        return dict(environ)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SettingsError(f"{SETTINGS_FILE}={path!r}: allowed is an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{SETTINGS_FILE}={path!r}: cannot be read: {reason}") from None
    return {**environ, **dict(_in_file(path, lines))}


def _in_file(path: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The settings in `lines`. An error never shows a value: it may be a key."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name) or name == SETTINGS_FILE:
            raise SettingsError(f"{SETTINGS_FILE}={path!r}: line {number} is not PROXY_NAME=value")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        yield name, value


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """One warning for each `PROXY_*` name that is none of ours, with the nearest one that is."""
    environ = with_file(os.environ if environ is None else environ)
    known = [variable(name) for name in Settings.model_fields]
    warnings = []
    for name in sorted(environ):
        if name.upper().startswith("PROXY_") and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)[0]
            warnings.append(f"unknown variable {name!r} is ignored; the nearest known is {near}")
    return warnings


def pending_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """One warning for each variable that is set and has no effect in this version."""
    environ = with_file(os.environ if environ is None else environ)
    names = sorted(variable(name) for name in PENDING)
    return [f"{name} has no effect in this version" for name in names if environ.get(name, "").strip()]


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
