import json
import subprocess
from collections.abc import Callable

import pytest

from tests.deploy.files import (
    DEPLOY,
    ROOT,
    Manifest,
    accepted,
    container_environment,
    documents,
    hosts_of,
    of_kind,
)
from tests.deploy.pods import check_proxy

EXAMPLES = ("one-box", "fleet")


def built(kubectl: str, example: str) -> str:
    """What `kubectl apply -k` would send."""
    command = [kubectl, "kustomize", str(DEPLOY / "kubernetes" / example)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def addresses(manifests: list[Manifest]) -> list[str]:
    """The names under which the pods of SGLang are reached."""
    found: list[str] = []
    headless = {
        s["metadata"]["name"] for s in of_kind(manifests, "Service") if s["spec"].get("clusterIP") == "None"
    }
    for servers in of_kind(manifests, "StatefulSet"):
        name = servers["spec"]["serviceName"]
        pods = [f"{name}-{number}.{name}" for number in range(servers["spec"]["replicas"])]
        found += pods if name in headless else [name]
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_manifests_agree_with_the_schemas(
    example: str, kubectl: str, agree_with_kubernetes: Callable[[str], None]
) -> None:
    agree_with_kubernetes(built(kubectl, example))


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_proxy_is_deployed_as_it_should(example: str, kubectl: str) -> None:
    check_proxy(documents(built(kubectl, example)))


@pytest.mark.parametrize("example", EXAMPLES)
def test_all_is_in_one_namespace(example: str, kubectl: str) -> None:
    manifests = [m for m in documents(built(kubectl, example)) if m["kind"] != "Namespace"]
    assert {m["metadata"]["namespace"] for m in manifests} == {"sglang"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_proxy_knows_every_server(example: str, kubectl: str) -> None:
    manifests = documents(built(kubectl, example))
    (deployment,) = of_kind(manifests, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = accepted(container_environment(container))
    assert hosts_of(settings) == addresses(manifests)
    assert (settings.long_tier_tokens is not None) == (example == "fleet")


@pytest.mark.parametrize("example", EXAMPLES)
def test_servers_answer_only_the_proxy_and_prometheus(example: str, kubectl: str) -> None:
    manifests = documents(built(kubectl, example))
    (policy,) = of_kind(manifests, "NetworkPolicy")
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    for servers in of_kind(manifests, "StatefulSet"):
        assert selected <= servers["spec"]["template"]["metadata"]["labels"].items()
    (deployment,) = of_kind(manifests, "Deployment")
    client = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"].items()
    assert client <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_the_config_map_holds_every_dashboard(kubectl: str) -> None:
    (dashboards,) = of_kind(documents(built(kubectl, "one-box")), "ConfigMap")
    files = {path.name: path.read_text() for path in (ROOT / "grafana" / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == {
        name: json.loads(text) for name, text in files.items()
    }
