import re
import subprocess

import pytest

from tests.operations.names import KNOWN, ROOT, metric_names

FOLDER = ROOT / "deploy" / "prometheus"
ALERTS = (FOLDER / "alerts.yml").read_text()
RECORDING = (FOLDER / "recording.yml").read_text()
NAMES = re.findall(r"- alert: (\w+)", ALERTS)


def test_every_metric_in_the_rules_is_one_of_ours() -> None:
    assert sorted(metric_names(ALERTS + RECORDING + (FOLDER / "tests.yml").read_text()) - set(KNOWN)) == []


def test_every_recorded_figure_that_alerts_use_is_recorded() -> None:
    recorded = set(re.findall(r"record: (\S+)", RECORDING))
    assert set(re.findall(r"sglang_proxy:[\w:]+", ALERTS)) <= recorded


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_severity_and_a_runbook_of_its_own(name: str) -> None:
    text = ALERTS.split(f"- alert: {name}\n")[1].split("- alert:")[0]
    assert re.search(r"severity: (critical|warning|info)\n", text)
    assert f"runbook: docs/runbooks.md#{name.lower()}\n" in text
    assert f"\n## {name}\n" in (ROOT / "docs" / "runbooks.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_is_shown_to_fire(name: str) -> None:
    assert f"- name: {name} fires\n" in (FOLDER / "tests.yml").read_text()


def test_runbooks_have_no_entry_without_an_alert() -> None:
    entries = re.findall(r"^## (SGLang\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert entries == NAMES


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "recording.yml", "alerts.yml"),
        ("test", "rules", "tests.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(promtool: str, arguments: tuple[str, ...]) -> None:
    done = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
