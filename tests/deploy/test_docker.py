import re
import subprocess
import tomllib

from packaging.requirements import Requirement

from tests.deploy.files import DEPLOY, ROOT, accepted

FOLDER = DEPLOY / "docker"
TEXT = (FOLDER / "Dockerfile").read_text()
FINAL = TEXT[TEXT.rindex("\nFROM ") :]
PINS = {
    name.lower().replace("_", "-"): version
    for name, version in re.findall(r"^(\S+)==(\S+)$", (FOLDER / "constraints.txt").read_text(), re.MULTILINE)
}


def test_it_runs_as_a_user_that_is_not_root_and_is_named_by_number() -> None:
    assert re.findall(r"^USER (.+)$", FINAL, re.MULTILINE) == ["10001:10001"]


def test_nothing_is_installed_in_the_final_stage() -> None:
    assert "RUN" not in re.findall(r"^[A-Z]+", FINAL, re.MULTILINE)


def test_its_environment_is_accepted_and_its_port_exposed() -> None:
    settings = accepted(dict(re.findall(r"\b(PROXY_[A-Z_]+)=(\S+)", FINAL)))
    assert settings.host == "0.0.0.0"
    assert re.findall(r"^EXPOSE (\d+)$", FINAL, re.MULTILINE) == [str(settings.port)]


def test_the_health_check_asks_livez() -> None:
    check = FINAL[FINAL.index("HEALTHCHECK") :]
    assert "/livez" in check


def test_everything_that_is_copied_reaches_the_builder() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_every_run_time_dependency_is_pinned_to_a_version_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(PINS[requirement.name]), line


def test_hadolint_finds_nothing(hadolint: str) -> None:
    done = subprocess.run([hadolint, str(FOLDER / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
