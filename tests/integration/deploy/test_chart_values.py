"""What people may write into their values, what they are told when it is wrong, and what becomes of it."""

import json
from typing import Any

import pytest
import yaml

from gpudev import settings
from support.deploy.chart_settings import settings_in_schema, settings_of_the_server
from support.deploy.helm_chart import CHART, Helm, Object, chart_values, containers
from support.paths import SUPPORT

EXAMPLES = SUPPORT / "deploy" / "chart_examples"
"""The specification's own two, to the letter."""

SPECIFIED_DEFAULTS = {
    "global.prefix": "gpu-dev",
    "namespaces.controlplane": "gpu-controlplane",
    "namespaces.workloads": "gpu-dev",
    "storage.class": "gp3",
    "postgres.enabled": True,
    "postgres.auth.password": "",
    "apiService.enabled": True,
    "apiService.replicas": 2,
    "reservationProcessor.enabled": True,
    "availabilityUpdater.enabled": True,
    "reservationExpiry.enabled": True,
}


@pytest.mark.parametrize(("name", "default"), SPECIFIED_DEFAULTS.items())
def test_every_key_parameter_has_the_specified_default(name: str, default: Any) -> None:
    found: Any = chart_values()
    for part in name.split("."):
        found = found[part]
    assert found == default


def test_helm_has_nothing_to_complain_about(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


REFUSED_BY_THE_SCHEMA = [
    {
        "apiService.replica: 2": "at '/apiService': additional properties 'replica' not allowed",
        "apiService.replicas: two": "at '/apiService/replicas': got string, want integer",
        "apiService.enabled: 'yes'": "at '/apiService/enabled': got string, want boolean",
        "cloudProvider.name: azure": "at '/cloudProvider/name': value must be one of 'none', 'aws', 'gcp'",
        "settings.GPU_DEV_MAX_HOUR: 3": "at '/settings': additional properties 'GPU_DEV_MAX_HOUR' not allowed",
        "postgres.primary.storage.size: 100": "at '/postgres/primary/storage/size': got number, want string",
        "namespaces.workloads: GPU": "at '/namespaces/workloads': 'GPU' does not match pattern",
        "postgres.backup.s3Url: bucket": "at '/postgres/backup/s3Url': 'bucket' does not match pattern",
        "reservationExpiry.schedule: often": "at '/reservationExpiry/schedule': 'often' does not match pattern",
    },
    {
        "apiservice.replicas: 2": "at '': additional properties 'apiservice' not allowed",
        "apiService.replicas: 0": "at '/apiService/replicas': minimum: got 0, want 1",
        # It has a place of its own.
        "settings.GPU_DEV_NAMESPACE: x": "at '/settings': additional properties 'GPU_DEV_NAMESPACE' not allowed",
        "postgres.primary.storage.size: 100GB": "at '/postgres/primary/storage/size': '100GB' does not match pattern",
        "sshProxy.url: ssh.example.com": "at '/sshProxy/url': 'ssh.example.com' does not match pattern",
        "postgres.image.tag: ''": "at '/postgres/image/tag': '' does not match pattern",
    },
]
"""Each group is given at once: Helm tells all that is wrong."""

REFUSED = {
    "global.image.tag: latest": "global: the image tag latest is not allowed",
    "postgres.image.tag: latest": "postgres: the image tag latest is not allowed",
    "cloudProvider.name: aws": "cloudProvider.name is aws: set cloudProvider.region",
    "storage.createClass: true": "storage.createClass needs cloudProvider.name aws or gcp",
    "namespaces.workloads: gpu-controlplane": "must differ",
    "postgres.enabled: false": "postgres.enabled is false: set postgres.external.host",
    "postgres.auth.username: replicator": "postgres and replicator are reserved",
    "postgres.auth.database: postgres": "postgres.auth.database: postgres is reserved by PostgreSQL",
    "apiService.ingress.enabled: true": "apiService.ingress.enabled is true: set apiService.ingress.host",
}


@pytest.mark.parametrize("group", REFUSED_BY_THE_SCHEMA)
def test_an_unknown_value_or_a_wrong_type_is_refused_with_its_place(helm: Helm, group: dict[str, str]) -> None:
    values: Object = {}
    for given in group:
        _merge(values, _values_of(given))
    told = helm.refusal(values)
    assert [words for words in group.values() if words not in told] == []


@pytest.mark.parametrize(("given", "told"), REFUSED.items(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused_in_words(helm: Helm, given: str, told: str) -> None:
    assert told in helm.refusal(_values_of(given))


def test_wrong_combinations_are_refused_in_words(helm: Helm) -> None:
    no_password = {"postgres": {"enabled": False, "external": {"host": "db.example.com"}}}
    assert "needs postgres.auth.password or postgres.auth.existingSecret" in helm.refusal(no_password)
    no_replica = {"postgres": {"serveFrom": "replica", "replica": {"enabled": False}}}
    assert "postgres.serveFrom is replica, but" in helm.refusal(no_replica)


def test_the_specified_aws_example_is_taken_unchanged(helm: Helm) -> None:
    chart = helm.render("values-aws.yaml", EXAMPLES / "aws.yaml")
    for app, kind in (
        ("api-service", "Deployment"),
        ("reservation-processor", "Deployment"),
        ("availability-updater", "CronJob"),
        ("reservation-expiry", "CronJob"),
    ):
        account = chart.get("ServiceAccount", app)
        role = account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        assert role == f"arn:aws:iam::ACCOUNT:role/{app}-role"
        [template] = [found for who, found in chart.pods() if who == f"{kind} {app}"]
        assert containers(template)[0]["image"].startswith(f"your-registry/{app}:")
        assert template["spec"]["serviceAccountName"] == app
    given = settings.load_settings(chart.settings())
    assert (given.cloud, given.aws.region, given.disks.zone) == ("aws", "us-east-2", "us-east-2a")
    assert given.kubernetes.eks_cluster_name == "my-gpu-cluster"
    gp3 = chart.get("StorageClass", "gp3")
    assert gp3["parameters"] == {"type": "gp3", "encrypted": "true"}
    assert chart.get("PersistentVolumeClaim", "postgres-primary-data")["spec"]["storageClassName"] == "gp3"


def test_the_specified_gcp_example_is_taken_unchanged(helm: Helm) -> None:
    chart = helm.render("values-gcp.yaml", EXAMPLES / "gcp.yaml")
    annotations = chart.get("ServiceAccount", "api-service")["metadata"]["annotations"]
    assert annotations == {"iam.gke.io/gcp-service-account": "api-service@my-project.iam.gserviceaccount.com"}
    given = settings.load_settings(chart.settings())
    assert (given.cloud, given.gcp.project, given.gcp.region) == ("gcp", "my-project", "us-central1")
    assert given.disks.zone == "us-central1-a"
    assert chart.get("StorageClass", "pd-ssd")["provisioner"] == "pd.csi.storage.gke.io"


def test_what_is_said_about_dev_servers_reaches_the_server(helm: Helm) -> None:
    said = {
        "defaultImage": "example.com/dev:1",
        "initImage": "example.com/init:2",
        "imagePullPolicy": "Always",
        "imagePullSecrets": ["one", "two"],
        "runtimeClass": "nvidia",
        "allowedCidrs": ["10.1.0.0/16"],
        "deniedCidrs": ["203.0.113.7/32"],
        "toleratedTaints": ["a", "b"],
        "wholeNodeResources": ["vpc.amazonaws.com/efa", "hugepages-2Mi"],
        "nodeAddress": "internal",
        "gpuTypeLabel": "gpu",
        "workspaceSize": "5Gi",
        "sharedStorageClass": "nfs",
    }
    assert said.keys() == chart_values()["devServers"].keys(), "every one of them"
    values = {"devServers": said, "settings": {"GPU_DEV_MAX_HOURS": 12, "GPU_DEV_FAIR_SHARE": True}}
    given = settings.load_settings(helm.render(values=values).settings())
    made = given.kubernetes
    assert (made.default_image, made.init_image) == ("example.com/dev:1", "example.com/init:2")
    assert (made.image_pull_policy, made.image_pull_secrets) == ("Always", ("one", "two"))
    assert (made.runtime_class, made.allowed_cidrs, made.tolerated_taints) == ("nvidia", ("10.1.0.0/16",), ("a", "b"))
    assert made.denied_cidrs == ("203.0.113.7/32",)
    assert made.whole_node_resources == ("vpc.amazonaws.com/efa", "hugepages-2Mi")
    assert (made.node_address, made.gpu_type_label) == ("internal", "gpu")
    assert (made.workspace_size, made.shared_storage_class) == ("5Gi", "nfs")
    assert (given.limits.max_hours, given.fair_share.on) == (12, True)
    assert (given.cluster, made.access, made.namespace) == ("kubernetes", "in-cluster", "gpu-dev")


def test_an_external_database_comes_in_place_of_ours(helm: Helm) -> None:
    external = {"enabled": False, "external": {"host": "db.example.com", "port": 6432}, "auth": {"password": "p"}}
    chart = helm.render(values={"postgres": external})
    assert not chart.of("StatefulSet")
    assert not chart.has("Service", "postgres-primary")
    assert not chart.has("PersistentVolumeClaim", "postgres-primary-data")
    database = settings.load_settings(chart.settings()).database
    assert (database.host, database.port, database.user) == ("db.example.com", 6432, "gpudev")
    own = helm.render(values={"postgres": {**external, "auth": {"existingSecret": "mine"}}})
    assert not own.has("Secret", "postgres-credentials")
    [secret] = {
        one["valueFrom"]["secretKeyRef"]["name"]
        for _, template in own.pods()
        for container in containers(template)
        for one in container.get("env", [])
        if one["name"] == "POSTGRES_PASSWORD"
    }
    assert secret == "mine"


def test_every_setting_of_the_server_can_be_given_under_its_name() -> None:
    assert settings_in_schema() == settings_of_the_server(), "run tools/chart-settings, and commit what it writes"


def test_every_value_is_in_the_schema_and_every_part_of_the_schema_among_the_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    _compare(chart_values(), schema, schema, "")


def _compare(values: Any, part: Object, schema: Object, where: str) -> None:
    while "$ref" in part:
        part = schema["definitions"][part["$ref"].rpartition("/")[2]]
    if "properties" not in part or where == ".settings":
        return
    assert part["additionalProperties"] is False, where
    if where.rpartition(".")[2] in ("requests", "limits"):
        return
    assert values.keys() == part["properties"].keys(), where
    for name, value in values.items():
        _compare(value, part["properties"][name], schema, f"{where}.{name}")


def _values_of(given: str) -> Object:
    name, _, text = given.partition(": ")
    value: Any = yaml.safe_load(text)
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _merge(values: Object, more: Object) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and name in values:
            _merge(values[name], value)
        else:
            values[name] = value
