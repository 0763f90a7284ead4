import json
import subprocess
import tomllib
from collections.abc import Callable

import pytest
import yaml

from tests.deploy.files import (
    CHART,
    DEPLOY,
    ROOT,
    VARIABLES,
    accepted,
    container_environment,
    documents,
    of_kind,
)
from tests.deploy.pods import check_proxy

EXAMPLES = ("values.yaml", "values-one-box.yaml", "values-fleet.yaml")


def rendered(helm: str, values: str, *options: str) -> str:
    """What `helm install proxy` would send."""
    command = [helm, "template", "proxy", str(CHART), "--values", str(CHART / values), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("values", EXAMPLES)
def test_helm_lints_it(values: str, helm: str) -> None:
    command = [helm, "lint", "--strict", str(CHART), "--values", str(CHART / values)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", EXAMPLES)
def test_what_it_renders_agrees_with_the_schemas(
    values: str, helm: str, agree_with_kubernetes: Callable[[str], None]
) -> None:
    agree_with_kubernetes(rendered(helm, values))


@pytest.mark.parametrize("values", EXAMPLES)
def test_the_proxy_is_deployed_as_it_should(values: str, helm: str) -> None:
    check_proxy(documents(rendered(helm, values)))


def test_the_fleet_has_a_tier_for_long_contexts(helm: str) -> None:
    (deployment,) = of_kind(documents(rendered(helm, "values-fleet.yaml")), "Deployment")
    settings = accepted(container_environment(deployment["spec"]["template"]["spec"]["containers"][0]))
    assert [spec.name for spec in settings.backend_specs() if spec.tier == "long"] == ["sglang-long-0"]
    assert settings.long_tier_tokens is not None
    assert settings.drain_seconds == 120


def test_dashboards_and_rules_are_those_of_the_repository(helm: str) -> None:
    manifests = documents(rendered(helm, "values-one-box.yaml"))
    (dashboards,) = of_kind(manifests, "ConfigMap")
    on_disk = {path.name: path.read_text() for path in (ROOT / "grafana" / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == {
        name: json.loads(text) for name, text in on_disk.items()
    }
    rules = [rule["spec"] for rule in of_kind(manifests, "PrometheusRule")]
    assert rules == [
        yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in ("recording.yml", "alerts.yml")
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "backends[0].url=sglang",
        "backends[0].tier=fast",
        "settings.PROXY_PORT=1",
        "drainSeconds=-1",
        "replicas=2",
    ],
)
def test_wrong_values_are_refused(wrong: str, helm: str) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        rendered(helm, "values-one-box.yaml", "--set", wrong)


@pytest.mark.parametrize("values", EXAMPLES)
def test_settings_in_values_exist(values: str) -> None:
    named = yaml.safe_load((CHART / values).read_text()).get("settings", {})
    assert set(named) <= VARIABLES


def test_settings_that_the_chart_makes_itself_exist() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]["settings"]["propertyNames"]["not"]["enum"]) <= VARIABLES


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_links_in_the_chart_lead_into_the_repository() -> None:
    assert (CHART / "dashboards").resolve() == ROOT / "grafana" / "dashboards"
    assert (CHART / "rules").resolve() == DEPLOY / "prometheus"
