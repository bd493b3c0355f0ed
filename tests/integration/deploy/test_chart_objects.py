"""What the chart makes, for every kind of installation: names people know, rights and security that nobody forgot."""

import tomllib
from collections.abc import Iterable
from typing import Any

import click
import pytest

from gpudev.adapters.kubernetes.client.rbac import (
    CLUSTER_RULES,
    DISK_CLUSTER_RULES,
    DISK_NAMESPACE_RULES,
    NAMESPACE_RULES,
    NODE_MACHINES_CLUSTER_RULES,
    NODE_MACHINES_NAMESPACE_RULES,
    OBSERVE_CLUSTER_RULES,
    TEARDOWN_DISK_CLUSTER_RULES,
    TEARDOWN_NAMESPACE_RULES,
    PolicyRule,
)
from gpudev.adapters.kubernetes.objects.labels import MANAGED_BY, MANAGER, RESERVATION_ID
from gpudev.adapters.kubernetes.objects.network_policies import build_dev_server_policy
from gpudev.adapters.kubernetes.objects.server_manifests import build_efs_storage_class
from gpudev.main import cli
from gpudev.settings import API_ROLE, PROCESSOR_ROLE, RECONCILER_ROLE, KubernetesSettings
from support.deploy.helm_chart import Helm, Object, Rendered, chart_values, containers
from support.kubernetes.binaries import ROOT
from support.kubernetes.policy_rules import Pod, allows

EVERYTHING: Object = {
    "sshProxy": {"url": "https://ssh.example.com", "public": {"enabled": True}},
    "apiService": {"ingress": {"enabled": True, "host": "gpu.example.com", "tlsSecret": "tls", "className": "nginx"}},
    "postgres": {"backup": {"s3Url": "s3://bucket/gpu-dev"}},
    "global": {"imagePullSecrets": ["registry"]},
    "settingsSecret": "more",
}
KINDS: dict[str, tuple[tuple[str, ...], Object | None]] = {
    "default": ((), None),
    "aws": (("values-aws.yaml",), None),
    "gcp": (("values-gcp.yaml",), None),
    "everything": (("values-aws.yaml",), EVERYTHING),
}


@pytest.fixture(params=KINDS)
def chart(helm: Helm, request: pytest.FixtureRequest) -> Rendered:
    files, values = KINDS[request.param]
    return helm.render(*files, values=values)


@pytest.fixture
def default(helm: Helm) -> Rendered:
    return helm.render()


def test_pods_are_found_by_the_labels_people_use(helm: Helm) -> None:
    chart = helm.render(values=EVERYTHING)
    found = {template["metadata"]["labels"]["app"] for _, template in chart.pods()}
    assert found >= {
        "api-service",
        "reservation-processor",
        "availability-updater",
        "reservation-expiry",
        "postgres",
        "registry-cache",
        "ssh-proxy",
    }


def test_services_have_the_names_types_and_ports_people_know(default: Rendered) -> None:
    found = {
        one["metadata"]["name"]: (one["spec"]["type"], [port["port"] for port in one["spec"]["ports"]])
        for one in default.of("Service")
    }
    assert found == {
        "postgres-primary": ("ClusterIP", [5432]),
        "postgres-replica": ("ClusterIP", [5432]),
        "registry-ghcr": ("LoadBalancer", [5000]),
        "registry-dockerhub": ("LoadBalancer", [5000]),
        "api-service": ("ClusterIP", [80]),
        "api-service-public": ("LoadBalancer", [80]),
        "ssh-proxy": ("ClusterIP", [80]),
    }


def test_every_service_finds_pods_and_their_port(chart: Rendered) -> None:
    for service in chart.of("Service"):
        wanted = service["spec"]["selector"].items()
        found = [template for _, template in chart.pods() if wanted <= template["metadata"]["labels"].items()]
        assert len(found) == 1, service["metadata"]["name"]
        names = {port["name"] for one in containers(found[0]) for port in one.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


@pytest.mark.parametrize("name", ["availability-updater", "reservation-expiry"])
def test_cron_jobs_run_as_specified(default: Rendered, name: str) -> None:
    spec = default.get("CronJob", name)["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("*/5 * * * *", "Forbid")
    assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 3)
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 600
    [container] = containers(spec["jobTemplate"]["spec"]["template"])
    assert float(container["args"][container["args"].index("--deadline") + 1]) < 600, "it ends by itself, and says why"


def test_claims_outlive_the_release_and_are_found_by_it(chart: Rendered) -> None:
    claims = {one["metadata"]["name"]: one for one in chart.of("PersistentVolumeClaim")}
    assert claims.keys() == {
        "postgres-primary-data",
        "postgres-replica-data",
        "postgres-backup-data",
        "registry-ghcr-data",
        "registry-dockerhub-data",
    }
    for name in ("postgres-primary-data", "postgres-replica-data"):
        assert claims[name]["spec"]["resources"]["requests"]["storage"] == "100Gi"
    for kept in (*claims.values(), *chart.of("Namespace"), *chart.of("StorageClass"), *chart.of("Secret")):
        assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", kept["metadata"]["name"]
    for one in claims.values():
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "gpu-dev"
    assert not any("volumeClaimTemplates" in one["spec"] for one in chart.of("StatefulSet"))


def test_the_services_of_the_cluster_belong_to_its_namespace_and_release(chart: Rendered) -> None:
    for one in chart.objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "gpu-dev", name
        if one["kind"] in ("Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "StorageClass"):
            continue
        place = "gpu-dev" if one["kind"] in ("Role", "RoleBinding") else "gpu-controlplane"
        assert one["metadata"]["namespace"] == place, name


def test_every_pod_keeps_the_restricted_level_and_says_what_it_needs(chart: Rendered) -> None:
    for who, template in chart.pods():
        spec = template["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"], who
        assert context["runAsUser"] > 0, who
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, who
        assert spec["enableServiceLinks"] is False, who
        assert spec["priorityClassName"].startswith("gpu-dev-"), who
        for one in containers(template):
            where = f"{who}/{one['name']}"
            security = one["securityContext"]
            assert security["readOnlyRootFilesystem"], where
            assert security["allowPrivilegeEscalation"] is False, where
            assert security["capabilities"] == {"drop": ["ALL"]}, where
            assert one["resources"]["requests"].keys() >= {"cpu", "memory"}, where
            assert "memory" in one["resources"]["limits"], where
            _, _, tag = one["image"].rpartition(":")
            assert tag not in ("", "latest"), where
            assert "/" not in tag, f"{where} has no tag"
            mounted = {mount["name"] for mount in one["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}, where


def test_only_who_talks_to_kubernetes_has_a_token(chart: Rendered) -> None:
    with_token = {
        template["metadata"]["labels"]["app"]
        for _, template in chart.pods()
        if template["spec"]["automountServiceAccountToken"]
    }
    bound = {one["subjects"][0]["name"] for kind in ("RoleBinding", "ClusterRoleBinding") for one in chart.of(kind)}
    assert with_token == bound == {"reservation-processor", "reservation-expiry", "availability-updater", "toolbox"}
    assert all(one["automountServiceAccountToken"] is False for one in chart.of("ServiceAccount"))


def test_each_service_comes_into_the_database_as_its_own_role(chart: Rendered) -> None:
    found = {}
    for _, template in chart.pods():
        for one in containers(template):
            said = {entry["name"]: entry for entry in one.get("env", [])}
            if one.get("command") == ["gpu-dev-server"]:
                key = said["POSTGRES_PASSWORD"]["valueFrom"]["secretKeyRef"]["key"]
                found[template["metadata"]["labels"]["app"]] = (said.get("POSTGRES_USER", {}).get("value"), key)
    assert found == {
        "api-service": (API_ROLE, "API_PASSWORD"),
        "ssh-proxy": (API_ROLE, "API_PASSWORD"),
        "reservation-processor": (PROCESSOR_ROLE, "PROCESSOR_PASSWORD"),
        "availability-updater": (RECONCILER_ROLE, "RECONCILER_PASSWORD"),
        "reservation-expiry": (RECONCILER_ROLE, "RECONCILER_PASSWORD"),
        "migrate": (None, "POSTGRES_PASSWORD"),
    }


def test_long_running_services_are_spread_and_survive_a_drain(default: Rendered) -> None:
    for name in ("api-service", "reservation-processor"):
        deployment = default.get("Deployment", name)
        spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        assert {one["topologyKey"] for one in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
        assert all(one["labelSelector"]["matchLabels"].items() <= labels for one in spread)
    api = default.get("Deployment", "api-service")["spec"]
    assert api["replicas"] == 2
    assert api["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    [container] = containers(api["template"])
    drain = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert 0 < drain < api["template"]["spec"]["terminationGracePeriodSeconds"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert default.get("PodDisruptionBudget", "api-service")["spec"]["maxUnavailable"] == 1


def test_each_service_is_granted_exactly_what_its_code_declares(chart: Rendered) -> None:
    has_cloud = chart.settings()["GPU_DEV_CLOUD"] != "none"
    for app, among, for_disks in (
        ("reservation-processor", NAMESPACE_RULES, DISK_CLUSTER_RULES),
        ("reservation-expiry", TEARDOWN_NAMESPACE_RULES, TEARDOWN_DISK_CLUSTER_RULES),
    ):
        everywhere = (*CLUSTER_RULES, *(for_disks if has_cloud else ()))
        assert _granted(chart.get("ClusterRole", f"gpu-dev-{app}")) == _declared(everywhere)
        assert _granted(chart.get("Role", app)) == _declared((*among, *(DISK_NAMESPACE_RULES if has_cloud else ())))
    assert _granted(chart.get("ClusterRole", "gpu-dev-availability-updater")) == _declared(OBSERVE_CLUSTER_RULES)
    assert _granted(chart.get("Role", "toolbox")) == _declared(NODE_MACHINES_NAMESPACE_RULES)
    if has_cloud:
        assert _granted(chart.get("ClusterRole", "gpu-dev-toolbox")) == _declared(NODE_MACHINES_CLUSTER_RULES)
    assert len(chart.of("ClusterRole")) == 3 + has_cloud
    assert len(chart.of("Role")) == 3


def test_shared_storage_on_efs_is_as_the_processor_would_make_it(helm: Helm) -> None:
    efs = {
        "cloudProvider": {"aws": {"efsFileSystemId": "fs-0123", "efsSecurityGroupId": "sg-1", "efsSubnetIds": "a,b"}}
    }
    chart = helm.render("values-aws.yaml", values=efs)
    ours = build_efs_storage_class(KubernetesSettings(efs_file_system_id="fs-0123"))
    assert ours is not None
    theirs = chart.get("StorageClass", ours["metadata"]["name"])
    assert {**theirs, "metadata": None} == {**ours, "metadata": None}
    rule = chart.get("ClusterRole", "gpu-dev-reservation-processor")["rules"][-1]
    assert (rule["resourceNames"], rule["verbs"]) == (["gpu-dev-efs"], ["get"]), "it may see that it is there"
    given = chart.settings()
    assert (given["EFS_SECURITY_GROUP_ID"], given["EFS_SUBNET_IDS"]) == ("sg-1", "a,b")


def test_every_pod_has_a_network_policy_of_its_own(chart: Rendered) -> None:
    policies = chart.of("NetworkPolicy")
    for who, template in chart.pods():
        labels = template["metadata"]["labels"].items()
        own = [one for one in policies if one["spec"]["podSelector"]["matchLabels"].items() <= labels]
        names = {one["metadata"]["name"] for one in own}
        assert "gpu-dev-default" in names, who
        assert len(names) == 2, f"{who}: {names}"
        assert all(one["spec"]["policyTypes"] == ["Ingress", "Egress"] for one in own), who


def test_the_database_is_reached_by_those_who_use_it_and_by_nobody_else(chart: Rendered) -> None:
    [rule] = chart.get("NetworkPolicy", "postgres")["spec"]["ingress"]
    selectors = [peer["podSelector"]["matchLabels"].items() for peer in rule["from"]]
    assert not any("namespaceSelector" in peer for peer in rule["from"])
    for who, template in chart.pods():
        labels = template["metadata"]["labels"].items()
        uses = any(
            variable["name"] in ("POSTGRES_PASSWORD", "PGPASSWORD")
            for one in containers(template)
            for variable in one.get("env", [])
        )
        assert uses == any(selector <= labels for selector in selectors), who


def test_a_dev_server_reaches_nothing_of_the_control_plane(chart: Rendered) -> None:
    """By its own policy, and mostly by the services' policies alone. The API, the SSH proxy and the image caches let
    everybody in, because load balancers and nodes come from unknown addresses."""
    dev_server = Pod("gpu-dev", {MANAGED_BY: MANAGER, RESERVATION_ID: "x"}, "10.1.0.7")
    of_services = chart.of("NetworkPolicy")
    policies = [*of_services, build_dev_server_policy(KubernetesSettings())]
    open_to_all = {("api-service", 8080), ("ssh-proxy", 8080), ("registry-cache", 5000)}
    for who, template in chart.pods():
        labels = template["metadata"]["labels"]
        service = Pod("gpu-controlplane", labels, "10.1.0.8")
        for port in (22, 80, 443, 5000, 5432, 8080, 9090, 10250):
            assert not allows(policies, dev_server, service, port), (who, port)
            if (labels["app"], port) not in open_to_all:
                assert not allows(of_services, dev_server, service, port), (who, port)


def test_settings_and_secrets_that_change_begin_the_services_anew(helm: Helm) -> None:
    def notes(values: Object) -> Object:
        deployment = helm.render(values={"postgres": {"auth": {"password": "p"}}, **values}).get(
            "Deployment", "api-service"
        )
        found: Object = deployment["spec"]["template"]["metadata"]["annotations"]
        return found

    assert notes({})["checksum/settings"] != notes({"settings": {"GPU_DEV_MAX_HOURS": 1}})["checksum/settings"]
    assert notes({})["checksum/settings"] == notes({})["checksum/settings"]


def test_a_migration_is_a_job_of_its_own_for_each_image(helm: Helm) -> None:
    [one] = helm.render().of("Job")
    [other] = helm.render(values={"global": {"image": {"tag": "0.2.0"}}}).of("Job")
    assert one["metadata"]["name"] != other["metadata"]["name"], "a Job never changes"
    assert "helm.sh/hook" not in one["metadata"].get("annotations", {}), "a hook would wait for what comes after it"
    [container] = containers(one["spec"]["template"])
    assert container["args"] == ["migrate", "--wait", "900"]


def test_every_command_of_a_pod_is_one_that_the_server_has(chart: Rendered) -> None:
    for who, template in chart.pods():
        for one in containers(template):
            if one.get("command") != ["gpu-dev-server"]:
                continue
            command: Any = cli
            for part in one["args"]:
                if part.startswith("-"):
                    break
                command = command.get_command(click.Context(command), part)
                assert command is not None, who
            known = {option for parameter in command.params for option in parameter.opts}
            assert {part for part in one["args"] if part.startswith("--")} <= known, who


def test_an_ingress_is_told_what_its_controller_would_do_otherwise(helm: Helm) -> None:
    """Else Jupyter's files are too large for nginx, and Google ends every session after half a minute."""
    way = {"enabled": True, "host": "gpu.example.com", "tlsSecret": "tls"}
    size = "nginx.ingress.kubernetes.io/proxy-body-size"

    def render(**more: object) -> Rendered:
        return helm.render(values={"apiService": {"ingress": {**way, **more}}})

    def told(kind: str, chart: Rendered) -> Object:
        found: Object = chart.get(kind, "api-service")["metadata"].get("annotations", {})
        return found

    nginx = render(className="nginx")
    assert told("Ingress", nginx)[size] == "0"
    assert told("Ingress", render(className="nginx", annotations={size: "8m"}))[size] == "8m"
    assert told("Ingress", render()) == told("Service", nginx) == {}
    google = render(annotations={"kubernetes.io/ingress.class": "gce"})
    assert told("Service", google) == {"cloud.google.com/backend-config": '{"default": "api-service"}'}
    assert google.get("BackendConfig", "api-service")["spec"] == {"timeoutSec": 86400}


def test_the_chart_installs_the_version_it_comes_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart_values("Chart.yaml")["appVersion"] == project["version"]


def _granted(role: Object) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _declared(rights: Iterable[PolicyRule]) -> set[tuple[str, str, str]]:
    return {(one.group, resource, verb) for one in rights for resource in one.resources for verb in one.verbs}
