"""Who may import whom. The core stays pure: that is what makes it provable and replaceable."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIG = ("proxy.backend_spec", "proxy.settings", "proxy.settings_sections", "proxy.settings_text")
TYPES = "proxy.admission.types"

# Beside itself and packages from outside, a room may import from the house only what stands here.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "proxy.admission": (),
    "proxy.tokens": (TYPES,),
    "proxy.telemetry": (TYPES,),
    "proxy.upstream": (TYPES, "proxy.backend_spec", "proxy.settings", "proxy.tokens.shape"),
    "proxy.simulator": ("proxy.admission",),
    "proxy.api": ("proxy.tokens", "proxy.upstream", "proxy.telemetry", "proxy.admission", *CONFIG),
    "proxy.backend_spec": (),
    "proxy.settings_sections": CONFIG,
    "proxy.settings_text": CONFIG,
    "proxy.settings": CONFIG,
}
# These wire the house together; nobody imports them but each other, in this order.
ON_TOP = (
    "proxy.fleet",
    "proxy.reload",
    "proxy.app",
    "proxy.serve",
    "proxy.plan",
    "proxy.doctor",
    "proxy.cli",
    "proxy.__main__",
)


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def inside(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports(source: str) -> Iterator[str]:
    """The dotted names `source` imports; of `from a import b` both a and a.b could be meant: a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(module: str, source: str) -> list[str]:
    """What `module` imports against the rules."""
    room = next((r for r in MAY_IMPORT if inside(module, (r,))), None)
    wrong = []
    for name in imports(source):
        ours = inside(name, ("proxy",))
        if room is None:
            continue
        if (
            inside(module, ("proxy.admission",))
            and not ours
            and name.split(".")[0] not in sys.stdlib_module_names
        ):
            wrong.append(f"{module} imports {name}: the core imports the standard library only")
        if ours and name != "proxy" and not inside(name, (room, *MAY_IMPORT[room])):
            wrong.append(f"{module} imports {name}")
    return wrong


def test_every_module_keeps_to_the_direction_of_imports() -> None:
    wrong = [line for name, path in modules().items() for line in violations(name, path.read_text())]
    assert wrong == []


def test_every_module_belongs_to_a_room() -> None:
    homeless = [name for name in modules() if name != "proxy" and not inside(name, (*MAY_IMPORT, *ON_TOP))]
    assert homeless == []


@pytest.mark.parametrize("effect", ["asyncio", "time", "logging", "threading", "socket", "random"])
def test_the_core_touches_no_clock_no_loop_and_no_outside(effect: str) -> None:
    touching = [
        name
        for name, path in modules().items()
        if inside(name, ("proxy.admission",))
        and any(inside(imported, (effect,)) for imported in imports(path.read_text()))
    ]
    assert touching == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("proxy.admission.pool", "import orjson"),
        ("proxy.admission.pool", "def f():\n    from proxy.telemetry import metrics"),
        ("proxy.telemetry.metrics", "from proxy.admission.pool import Pool"),
        ("proxy.telemetry.metrics", "from proxy.admission import pool"),
        ("proxy.upstream.backend", "import proxy.api.routes"),
        ("proxy.api.routes", "from proxy.app import build"),
        ("proxy.settings", "from proxy.telemetry import logs"),
        ("proxy.tokens.sizer", "from proxy.upstream import backend"),
    ],
)
def test_the_rule_catches_what_it_forbids(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("proxy.admission.pool", "import heapq\nfrom proxy.admission.types import Lane"),
        ("proxy.telemetry.metrics", "from proxy.admission.types import Lane\nimport prometheus_client"),
        ("proxy.api.routes", "from proxy.upstream.backend import Backend"),
        ("proxy.cli", "from proxy.app import build"),
    ],
)
def test_the_rule_allows_what_it_should(module: str, source: str) -> None:
    assert violations(module, source) == []
