import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
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


@pytest.fixture
def alive() -> Iterator[int]:
    """The port of something that answers /livez and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def health_check(port: int) -> int:
    """The status of the image's health check, run as it is written."""
    command: list[str] = json.loads(re.findall(r"CMD (\[.+\])\n", FINAL)[0])
    assert command[0] == "python"
    environment = {"PROXY_PORT": str(port)}
    return subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True).returncode


def test_the_health_check_passes_where_livez_answers(alive: int) -> None:
    assert health_check(alive) == 0


def test_the_health_check_fails_where_nothing_listens() -> None:
    assert health_check(1) != 0


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
