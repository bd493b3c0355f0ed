"""The objects for Prometheus, on a real API server that knows the Prometheus operator's own kinds."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.deploy.helm_chart import CHART, Helm, Object, Rendered
from support.deploy.kubectl import Kubectl, KubectlRefused
from support.go_program import PROMETHEUS_KINDS
from support.kubernetes.control_plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def kinds() -> Path:
    found = PROMETHEUS_KINDS.find()
    if found is None:
        pytest.skip("NO PROMETHEUS OPERATOR'S KINDS TO TEST WITH: `python tests/support/go_program.py` fetches them")
    return found


@pytest.fixture(scope="module")
def kubectl(helm: Helm, plane: ControlPlane, kinds: Path) -> Kubectl:
    made = Kubectl(helm.program.with_name("kubectl"), plane.kubeconfig)
    made.run("apply", "--server-side", "--filename", str(kinds))
    made.run("wait", "--for=condition=Established", "--timeout=60s", "--filename", str(kinds))
    return made


@pytest.fixture(scope="module")
def installed(helm: Helm, plane: ControlPlane, kubectl: Kubectl) -> Iterator[Rendered]:
    name = f"m{uuid.uuid4().hex[:6]}"
    values: Object = {
        "global": {"prefix": name},
        "namespaces": {"controlplane": f"{name}-control", "workloads": f"{name}-work"},
        "monitoring": {"enabled": True, "labels": {"release": "kube-prometheus-stack"}},
    }
    helm.run("install", name, str(CHART), *helm.value_arguments(values=values), kubeconfig=plane.kubeconfig)
    yield helm.render(values=values, release=name)
    helm.run("uninstall", name, kubeconfig=plane.kubeconfig)


def ours(chart: Rendered) -> list[Object]:
    return [one for one in chart.objects if one["apiVersion"].startswith("monitoring.coreos.com/")]


def test_all_that_the_chart_says_to_prometheus_is_kept(installed: Rendered, kubectl: Kubectl) -> None:
    """What a kind does not know is dropped silently when Helm installs it."""
    assert {one["kind"] for one in ours(installed)} == {"ServiceMonitor", "PrometheusRule"}
    for one in ours(installed):
        place = ("--namespace", one["metadata"]["namespace"], "--output=json")
        found = json.loads(kubectl.run("get", one["kind"].lower(), one["metadata"]["name"], *place))
        assert found["spec"] == one["spec"]
        selected = ("--all-namespaces", "--selector=release=kube-prometheus-stack", "--output=name")
        assert len(kubectl.run("get", one["kind"].lower(), *selected).splitlines()) == 1, "as the operator looks for it"


def test_a_field_or_a_value_that_the_operator_does_not_know_is_refused(installed: Rendered, kubectl: Kubectl) -> None:
    """Which says that what is taken above is looked at."""
    objects = ours(installed)
    for one in objects:
        one["metadata"]["name"] += "-again"
    assert len(kubectl.try_strictly(objects)) == len(objects)
    monitor = installed.get("ServiceMonitor", "gpu-dev-again")
    rule = installed.get("PrometheusRule", "gpu-dev-again")
    endpoint, alert = monitor["spec"]["endpoints"][0], rule["spec"]["groups"][0]["rules"][0]
    for part, wrong, told in (
        (endpoint, {"intervall": "30s"}, 'unknown field "(spec.endpoints.0..)?intervall"'),
        (endpoint, {"interval": "often"}, "spec.endpoints.0..interval: Invalid value"),
        (alert, {"expression": "up"}, 'unknown field "(spec.groups.0..rules.0..)?expression"'),
        (alert, {"for": "a while"}, "spec.groups.0..rules.0..for: Invalid value"),
    ):
        before = dict(part)
        part.update(wrong)
        with pytest.raises(KubectlRefused, match=told):
            kubectl.try_strictly(objects)
        part.clear()
        part.update(before)
