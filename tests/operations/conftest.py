import shutil
import sys
from pathlib import Path

import pytest

# grafana/generator is not installed with the package: it is found from the repository's root.
sys.path.insert(0, str(Path(__file__).parents[2]))


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian package: prometheus)")
    return path


@pytest.fixture
def promtool() -> str:
    return _tool("promtool")


@pytest.fixture
def prometheus() -> str:
    return _tool("prometheus")
