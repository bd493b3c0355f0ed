"""What the chart brings for operators' eyes: monitors that find pods, rules that fire when they should, dashboards and
rules that speak of nothing that no service tells."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from gpudev.adapters.dcgm_exporter import BUSY_PERCENT
from gpudev.adapters.kubernetes.observation import pod_failures  # noqa: F401 - it has a metric of its own
from gpudev.metrics import instruments  # noqa: F401
from gpudev.metrics.system_state import GpuTypeState, MessageQueueState, SystemState, SystemStateCollector
from gpudev.ports.clock import SystemClock
from support.deploy.helm_chart import CHART, Helm, Object, Rendered, containers
from support.go_program import PROMTOOL, ROOT
from support.paths import SUPPORT

RULES = CHART / "rules" / "gpu-dev.yaml"
RULES_TEST = SUPPORT / "deploy" / "prometheus_rules_test.yaml"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
GUIDE = ROOT / "docs" / "operations" / "monitoring.md"
OF_PROMETHEUS = {"namespace", "pod", "service", "job", "instance", "le"}
"""Labels that no service gives."""
_METRIC = re.compile(r"\b((?:gpudev|process|DCGM)_[A-Za-z_]+)(?:\{([^}]*)\})?")
_OF_EXPORTERS = {BUSY_PERCENT: {"modelName", "exported_pod"}}
"""What NVIDIA's exporters tell, with the labels that dashboards use."""


@pytest.fixture
def watched(helm: Helm) -> Rendered:
    return helm.render(values={"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}})


def told() -> dict[str, set[str]]:
    """Every metric that a service tells, with the labels it has."""
    whole = SystemStateCollector()
    one = GpuTypeState("h100", nodes={"open": 1}, by_status={"active": 1}, availability_age_seconds=1)
    whole.staleness = {"pods": 1.0}
    whole.state = SystemState(
        SystemClock().now(),
        (one,),
        (MessageQueueState("q", 0, 0, 0),),
        disks={"idle": 1},
        disk_operations={("create", "running"): 1},
        examined_seconds_ago=1,
    )
    found: dict[str, set[str]] = dict(_OF_EXPORTERS)
    for family in whole.collect():
        found[family.name] = {label for sample in family.samples for label in sample.labels}
    for collector, names in REGISTRY._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        found |= {name: labels for name in names if not name.endswith("_created")}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    for file in DASHBOARDS:
        board = json.loads(file.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{file.stem}: {panel['title']}", target["expr"]


def test_dashboards_and_rules_name_no_metric_and_no_label_that_nobody_tells() -> None:
    known, used = told(), set()
    for where, expression in expressions():
        metrics = _METRIC.findall(expression)
        assert metrics, f"{where} asks for nothing of ours"
        for name, matchers in metrics:
            assert name in known, f"{where} names {name}, which no service tells"
            used.add(name)
            matched = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert matched <= known[name] | OF_PROMETHEUS, f"{where}: {name} has no label {matched - known[name]}"
        grouped = {
            label.strip()
            for labels in re.findall(r"\bby \(([^)]*)\)", expression)
            for label in labels.split(",")
            if label.strip()
        }
        anyones = set().union(*(known[name] for name, _ in metrics)) | OF_PROMETHEUS
        assert grouped <= anyones, f"{where} groups by {grouped - anyones}, which none of its metrics has"
    assert len(used) > 30


def test_the_guide_explains_every_metric_and_every_alert_and_no_other() -> None:
    text = GUIDE.read_text()
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in told() if name.startswith("gpudev_")}
    ours -= {name.removesuffix("_total") for name in ours if name.endswith("_total")}
    explained = {name for line in text.splitlines() for name in re.findall(r"^\| `(gpudev_[a-z_]+)", line)}
    assert explained == ours
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    assert set(re.findall(r"^\| `(GpuDev\w+)`", text, re.MULTILINE)) == alerts


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    program = PROMTOOL.find()
    if program is None:
        pytest.skip("NO PROMTOOL TO TEST WITH: `make test` builds it, and so does `python tests/support/go_program.py`")
    shutil.copy(RULES, tmp_path)
    shutil.copy(RULES_TEST, tmp_path)
    for arguments in (["check", "rules", "--lint-fatal", "gpu-dev.yaml"], ["test", "rules", RULES_TEST.name]):
        done = subprocess.run(
            [program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_played_in_a_test() -> None:
    played = RULES_TEST.read_text()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["alert"] in played, f"{rule['alert']} is never seen to fire"


def test_prometheus_finds_the_metrics_of_every_service(watched: Rendered) -> None:
    monitor = watched.get("ServiceMonitor", "gpu-dev")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [one for one in watched.of("Service") if wanted <= one["metadata"]["labels"].items()]
    assert {one["spec"]["selector"]["app"] for one in services} == {"api-service", "reservation-processor", "ssh-proxy"}
    assert all(one["metadata"]["namespace"] == "gpu-controlplane" for one in services)
    for service in services:
        (port,) = service["spec"]["ports"]
        selector = service["spec"]["selector"].items()
        (pod,) = [template for _, template in watched.pods() if selector <= template["metadata"]["labels"].items()]
        ports = {port["name"]: port["containerPort"] for one in containers(pod) for port in one.get("ports", [])}
        assert ports[port["targetPort"]] == _metrics_port(watched)
        assert monitor["spec"]["endpoints"][0]["port"] == port["name"]


def test_metrics_are_reached_from_within_the_cluster_and_by_no_service_of_peoples(watched: Rendered) -> None:
    port = _metrics_port(watched)
    for app in ("api-service", "reservation-processor", "ssh-proxy"):
        rules = [
            rule
            for rule in watched.get("NetworkPolicy", app)["spec"]["ingress"]
            if any(one["port"] == port for one in rule["ports"])
        ]
        (peers,) = [rule["from"] for rule in rules]
        (not_in,) = peers[0]["namespaceSelector"]["matchExpressions"]
        assert (not_in["operator"], not_in["values"]) == ("NotIn", ["gpu-dev"])  # dev servers have no business there
    public = [one for one in watched.of("Service") if one["spec"]["type"] == "LoadBalancer"]
    assert public
    assert not [port for one in public for port in one["spec"]["ports"] if port["targetPort"] == "metrics"]


def test_whoever_is_named_may_gather_metrics_and_nobody_else(helm: Helm) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "prometheus"}}}]
    chart = helm.render(values={"monitoring": {"enabled": True, "scrapeFrom": peers}})
    (rule,) = chart.get("NetworkPolicy", "reservation-processor")["spec"]["ingress"]
    assert rule["from"] == peers


def test_without_monitoring_nobody_is_let_to_the_metrics(helm: Helm) -> None:
    chart = helm.render()
    assert not [one for one in chart.objects if one["apiVersion"].startswith("monitoring.coreos.com")]
    assert "ingress" not in chart.get("NetworkPolicy", "reservation-processor")["spec"]
    ports = [
        port["port"] for rule in chart.get("NetworkPolicy", "api-service")["spec"]["ingress"] for port in rule["ports"]
    ]
    assert ports == [8080]


def test_rules_and_dashboards_come_as_they_are_in_their_files(watched: Rendered) -> None:
    rule = watched.get("PrometheusRule", "gpu-dev")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    for file in DASHBOARDS:
        made = watched.get("ConfigMap", f"gpu-dev-dashboard-{file.stem}")
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(made["data"][f"gpu-dev-{file.stem}.json"]) == json.loads(file.read_text())


def test_dashboards_lay_their_panels_side_by_side_and_over_no_other() -> None:
    for file in DASHBOARDS:
        board: dict[str, Any] = json.loads(file.read_text())
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert at["x"] + at["w"] <= 24 and not cells & taken, f"{file.stem}: {panel['title']}"
            taken |= cells
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize("app", ["reservation-processor", "ssh-proxy", "api-service"])
def test_a_service_that_hangs_is_restarted_and_one_that_is_not_ready_is_not(helm: Helm, app: str) -> None:
    (container,) = helm.render().get("Deployment", app)["spec"]["template"]["spec"]["containers"]
    named: Object = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"]["port"] in named
    assert container["readinessProbe"]["httpGet"]["port"] in named


def test_the_api_reaches_every_exporter_of_gpu_facts_and_nobody_else_does(helm: Helm) -> None:
    chart = helm.render(values={"gpuFacts": {"enabled": True, "namespace": "nvidia", "port": 9401}})
    service = chart.get("Service", "gpu-dev-dcgm")
    assert service["metadata"]["namespace"] == "nvidia"
    assert service["spec"]["clusterIP"] == "None"  # so that its name stands for every one of them
    assert service["spec"]["selector"] == {"app": "nvidia-dcgm-exporter"}
    assert chart.settings()["GPU_DEV_DCGM_URL"] == "http://gpu-dev-dcgm.nvidia.svc:9401/metrics"
    reaching = [
        policy["metadata"]["name"]
        for policy in chart.of("NetworkPolicy")
        for rule in policy["spec"].get("egress", ())
        if any(port.get("port") == 9401 for port in rule.get("ports", ()))
    ]
    assert reaching == ["api-service"]
    assert not helm.render().has("Service", "gpu-dev-dcgm")


def _metrics_port(chart: Rendered) -> int:
    return int(chart.settings()["GPU_DEV_METRICS_ADDRESS"].rpartition(":")[2])
