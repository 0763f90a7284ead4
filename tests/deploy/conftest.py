"""The tools that judge deployment files. Where one is missing, its tests are skipped and say so."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.install import CACHE

KUBERNETES_VERSION = "1.34"
# Beside the interpreter lies what pip installed; in the cache what `make test-deploy` unpacked.
PLACES = os.pathsep.join([str(Path(sys.executable).parent), str(CACHE), os.environ["PATH"], "/usr/sbin"])


def _tool(name: str, source: str) -> str:
    path = shutil.which(name, path=PLACES)
    if path is None:
        pytest.skip(f"{name} is not installed ({source})")
    return path


@pytest.fixture
def helm() -> str:
    return _tool("helm", "make test-deploy brings it")


@pytest.fixture
def kubectl() -> str:
    return _tool("kubectl", "make test-deploy brings it")


@pytest.fixture
def hadolint() -> str:
    return _tool("hadolint", "make test-deploy brings it")


@pytest.fixture
def check_jsonschema() -> str:
    return _tool("check-jsonschema", "make test-deploy brings it")


@pytest.fixture
def systemd_analyze() -> str:
    return _tool("systemd-analyze", "Debian package: systemd")


@pytest.fixture
def nginx() -> str:
    return _tool("nginx", "Debian package: nginx-light")


@pytest.fixture
def promtool() -> str:
    return _tool("promtool", "Debian package: prometheus")


@pytest.fixture
def agree_with_kubernetes(tmp_path: Path) -> Callable[[str], None]:
    """Holds manifests against the API server's own schemas; unknown fields are errors too."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed (make test-deploy brings it)")

    def check(manifests: str) -> None:
        file = tmp_path / "manifests.yaml"
        file.write_text(manifests)
        command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", KUBERNETES_VERSION]
        done = subprocess.run([*command, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    return check
