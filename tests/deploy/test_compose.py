import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.files import DEPLOY, accepted, hosts_of, service

FOLDER = DEPLOY / "compose"
STACKS = {
    "one-box": ("sglang",),
    "fleet": ("sglang-1", "sglang-2", "sglang-long"),
}
SERVERS = [(stack, name) for stack, names in STACKS.items() for name in names]


@pytest.mark.parametrize("name", ["base", "observability", *STACKS])
def test_a_file_is_as_the_compose_specification_wants_it(name: str, check_jsonschema: str) -> None:
    command = [check_jsonschema, "--builtin-schema", "vendor.compose-spec", str(FOLDER / f"{name}.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("stack", STACKS)
def test_the_proxy_knows_every_server_of_its_stack(stack: str) -> None:
    settings = accepted(service(f"{stack}.yml", "proxy")["environment"])
    assert hosts_of(settings) == list(STACKS[stack])
    (targets,) = yaml.safe_load((FOLDER / f"targets-{stack}.yml").read_text())
    assert targets["targets"] == [f"{name}:30000" for name in STACKS[stack]]


def test_the_fleet_has_a_tier_for_long_contexts() -> None:
    settings = accepted(service("fleet.yml", "proxy")["environment"])
    assert [spec.name for spec in settings.backend_specs() if spec.tier == "long"] == ["sglang-long"]
    assert settings.long_tier_tokens is not None


@pytest.mark.parametrize("stack", STACKS)
def test_the_proxy_cannot_write_or_gain_rights(stack: str) -> None:
    proxy = service(f"{stack}.yml", "proxy")
    assert proxy["read_only"] is True
    assert proxy["cap_drop"] == ["ALL"]
    assert proxy["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("stack", STACKS)
def test_the_proxy_has_time_to_drain(stack: str) -> None:
    proxy = service(f"{stack}.yml", "proxy")
    assert int(proxy["stop_grace_period"].removesuffix("s")) > accepted(proxy["environment"]).drain_seconds


@pytest.mark.parametrize("stack", STACKS)
def test_published_ports_are_those_it_listens_on(stack: str) -> None:
    proxy = service(f"{stack}.yml", "proxy")
    settings = accepted(proxy["environment"])
    published = {int(port.rpartition(":")[2]) for port in proxy["ports"]}
    assert published == {settings.port, settings.admin_port}
    assert proxy["ports"][1].startswith("127.0.0.1:")


@pytest.mark.parametrize(("stack", "name"), SERVERS)
def test_a_server_is_reached_by_the_proxy_only(stack: str, name: str) -> None:
    server = service(f"{stack}.yml", name)
    assert server["networks"] == ["engine"]
    assert "ports" not in server
    networks = yaml.safe_load((FOLDER / "observability.yml").read_text())["networks"]
    assert networks["engine"]["internal"] is True


@pytest.mark.parametrize(("stack", "name"), SERVERS)
def test_a_server_reports_what_the_proxy_reads(stack: str, name: str) -> None:
    command = service(f"{stack}.yml", name)["command"]
    assert {"--port=30000", "--enable-metrics", "--enable-cache-report"} <= set(command)


def test_all_mounted_files_exist() -> None:
    services = yaml.safe_load((FOLDER / "observability.yml").read_text())["services"]
    mounted = [volume.split(":")[0] for each in services.values() for volume in each["volumes"]]
    paths = [path for path in mounted if path.startswith(".")]
    assert paths
    assert all((FOLDER / path).exists() for path in paths)


@pytest.mark.parametrize("stack", STACKS)
def test_prometheus_takes_its_configuration(stack: str, tmp_path: Path, promtool: str) -> None:
    for source in (FOLDER / "prometheus.yml", *(DEPLOY / "prometheus").glob("[ar]*.yml")):
        shutil.copy(source, tmp_path)
    shutil.copy(FOLDER / f"targets-{stack}.yml", tmp_path / "targets-sglang.yml")
    command = [promtool, "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_the_proxy_under_the_job_that_alerts_name() -> None:
    jobs = {
        job["job_name"]: job
        for job in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    }
    admin_port = accepted(service("one-box.yml", "proxy")["environment"]).admin_port
    assert jobs["sglang-admission-proxy"]["static_configs"] == [{"targets": [f"proxy:{admin_port}"]}]
