"""What is asked of the proxy's manifests, whoever renders them."""

from tests.deploy.files import Manifest, accepted, container_environment, of_kind


def check_proxy(manifests: list[Manifest]) -> None:
    """All checks below."""
    (deployment,) = of_kind(manifests, "Deployment")
    check_one_ledger(deployment)
    check_rights(deployment)
    check_ports_and_probes(deployment)
    check_drain(deployment)
    check_names(manifests, deployment)


def check_one_ledger(deployment: Manifest) -> None:
    """One replica, replaced before it goes."""
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def check_rights(deployment: Manifest) -> None:
    """As Kubernetes' restricted profile wants it, and a root that cannot be written."""
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def check_ports_and_probes(deployment: Manifest) -> None:
    """Ports are those that the settings open, and probes ask the clients' one."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = accepted(container_environment(container))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.port, "admin": settings.admin_port}
    for probe, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/ready")):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}


def check_drain(deployment: Manifest) -> None:
    """The grace period covers the pause before SIGTERM and the drain after it."""
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = accepted(container_environment(container)).drain_seconds
    assert pod["terminationGracePeriodSeconds"] >= pause + drain + 5


def check_names(manifests: list[Manifest], deployment: Manifest) -> None:
    """Services, budget and monitor select what they mean to."""
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels
    services = {
        s["metadata"]["name"]: s
        for s in of_kind(manifests, "Service")
        if s["spec"]["selector"].items() <= labels
    }
    name = deployment["metadata"]["name"]
    assert set(services) == {name, f"{name}-admin"}
    for service in services.values():
        assert service["spec"]["ports"][0]["targetPort"] in ("http", "admin")
    for monitor in of_kind(manifests, "ServiceMonitor"):
        admin = services[f"{name}-admin"]["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= admin.items()
        assert admin[monitor["spec"]["jobLabel"]] == "sglang-admission-proxy"  # the job that alerts name
        assert [end["port"] for end in monitor["spec"]["endpoints"]] == ["admin"]
