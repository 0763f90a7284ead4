import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, accepted, environment_file

FOLDER = DEPLOY / "systemd"
UNIT = (FOLDER / "sglang-admission-proxy.service").read_text()
WORST_EXPOSURE = 1.5


def value(name: str) -> str:
    """What the unit says for `name`."""
    found: list[str] = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return found[-1]


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that exists here: `verify` looks for it."""
    text = UNIT.replace("/opt/sglang-admission-proxy/bin/sglang-admission-proxy", "/bin/true")
    path = tmp_path / "sglang-admission-proxy.service"
    path.write_text(text)
    return path


def test_systemd_verifies_the_unit_without_a_word(unit: Path, systemd_analyze: str) -> None:
    done = subprocess.run([systemd_analyze, "verify", str(unit)], capture_output=True, text=True)
    about_ours = [line for line in done.stderr.splitlines() if "sglang-admission-proxy" in line]
    assert (done.returncode, about_ours) == (0, [])


def test_its_exposure_is_low(unit: Path, systemd_analyze: str) -> None:
    command = [systemd_analyze, "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    overall = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert overall is not None, done.stderr
    assert float(overall.group(1)) <= WORST_EXPOSURE


@pytest.mark.parametrize("example", ["one-box", "fleet"])
def test_an_example_environment_is_accepted(example: str) -> None:
    settings = accepted(environment_file((FOLDER / f"{example}.env").read_text()))
    assert settings.drain_seconds < int(value("TimeoutStopSec"))
    long = [spec.name for spec in settings.backend_specs() if spec.tier == "long"]
    assert bool(long) == (example == "fleet") == (settings.long_tier_tokens is not None)


def test_the_decision_log_lies_where_the_unit_may_write() -> None:
    settings = accepted(environment_file((FOLDER / "fleet.env").read_text()))
    assert str(settings.decision_log).startswith(f"/var/lib/{value('StateDirectory')}/")


def test_a_wrong_setting_is_not_tried_again() -> None:
    assert value("RestartPreventExitStatus") == "2"  # what `serve` ends with then
