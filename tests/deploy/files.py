"""Deployment files, read."""

import re
from pathlib import Path
from typing import Any

import yaml

from proxy.settings import Settings, load_settings
from proxy.settings_text import variable

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "sglang-admission-proxy"
VARIABLES = {variable(name) for name in Settings.model_fields}
Manifest = dict[str, Any]


def documents(text: str) -> list[Manifest]:
    """The YAML documents in `text`, without empty ones."""
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """Those of one kind, in order."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def environment_file(text: str) -> dict[str, str]:
    """What systemd reads from an environment file: quotes around a value are dropped."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def container_environment(container: Manifest) -> dict[str, str]:
    """The plain variables of a container in a pod."""
    return {item["name"]: item["value"] for item in container["env"]}


def accepted(environment: dict[str, str]) -> Settings:
    """The settings that the proxy makes of `environment`: raises SettingsError where it would not start."""
    ours = {name: value for name, value in environment.items() if name.startswith("PROXY_")}
    assert set(ours) <= VARIABLES
    return load_settings(ours)


def service(file: str, name: str) -> Manifest:
    """One service of a compose file, with what it extends."""
    own: Manifest = yaml.safe_load((DEPLOY / "compose" / file).read_text())["services"][name]
    if "extends" not in own:
        return own
    base = service(own["extends"]["file"], own["extends"]["service"])
    environment = base.get("environment", {}) | own.get("environment", {})
    return {**base, **own, "environment": environment}


def hosts_of(settings: Settings) -> list[str]:
    """The host names of the backends, in order."""
    found = [re.match(r"https?://([^:/]+)", spec.url) for spec in settings.backend_specs()]
    return [match.group(1) for match in found if match is not None]
