import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grafana.generator.__main__ import DASHBOARDS, FOLDER, files
from tests.operations.names import KNOWN, ROOT, metric_names

# Grafana fills these in; for a syntax check any value will do.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$backend": ".*"}


def panels() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.stem, panel)
        for path in sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        if panel["type"] != "text"
    ]


def expressions() -> list[str]:
    return [target["expr"] for _, panel in panels() for target in panel["targets"]]


def plain(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_the_files_are_what_the_generator_writes() -> None:
    on_disk = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert on_disk == files(), "run: python -m grafana.generator"


def test_every_metric_is_on_a_panel() -> None:
    shown = {name for expression in expressions() for name in metric_names(expression)}
    assert sorted(set(KNOWN) - shown) == []


def test_every_name_on_a_panel_is_a_metric_of_ours() -> None:
    shown = {name for expression in expressions() for name in metric_names(expression)}
    assert sorted(shown - set(KNOWN)) == []


def test_labels_in_queries_exist() -> None:
    known = {label for spec in KNOWN.values() for label in spec.labels} | {"le", "instance", "dp_rank"}
    for expression in expressions():
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        matched = re.findall(r"(\w+)=~?\"", expression)
        used = {label.strip() for group in grouped for label in group.split(",")} | set(matched)
        assert used <= known, expression


def test_counters_are_shown_as_rates() -> None:
    for expression in expressions():
        for name in metric_names(expression):
            if KNOWN[name].kind == "counter":
                assert f"rate({name}" in expression


def test_every_panel_says_what_to_do_when_it_looks_bad() -> None:
    for board, panel in panels():
        what, _, bad = panel["description"].partition("\n\n**When it looks bad:** ")
        assert len(what) > 10, (board, panel["title"])
        assert len(bad) > 20, (board, panel["title"])


def test_settings_named_in_descriptions_exist() -> None:
    known = (ROOT / "docs" / "settings.md").read_text()
    for _, panel in panels():
        for name in re.findall(r"PROXY_\w+", panel["description"]):
            assert f"`{name}`" in known


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_panels_lie_side_by_side_without_overlap(board: Any) -> None:
    model = json.loads((FOLDER / f"{board.uid}.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in model["panels"]]
    assert len(ids) == len(set(ids))


def test_provisioning_points_at_the_uid_and_folder_in_use() -> None:
    provisioning = ROOT / "grafana" / "provisioning"
    assert "path: /var/lib/grafana/dashboards" in (provisioning / "dashboards" / "dashboards.yml").read_text()
    assert "type: prometheus" in (provisioning / "datasources" / "prometheus.yml").read_text()


def rules_of_panels() -> str:
    """All panel queries as recording rules: a form in which promtool checks their syntax."""
    lines = ["groups:", "  - name: panels", "    rules:"]
    for number, expression in enumerate(expressions()):
        lines.append(f"      - record: panel:{number}")
        lines.append(f"        expr: {json.dumps(plain(expression))}")
    return "\n".join(lines) + "\n"


def test_panel_queries_are_valid_promql(tmp_path: Path, promtool: str) -> None:
    (tmp_path / "panels.yml").write_text(rules_of_panels())
    done = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "panels.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
