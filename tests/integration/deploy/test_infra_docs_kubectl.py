"""Every `kubectl` that a handbook tells people to type means something that the chart makes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.deploy.helm_template import rendered
from support.deploy.opentofu_programs import ROOT

pytestmark = pytest.mark.slow
HANDBOOKS = sorted((ROOT / "docs" / "operations").glob("*.md"))
CONTROLPLANE = "gpu-controlplane"
NAMESPACES = {"gpu-dev", CONTROLPLANE, "monitoring", "gpu-operator", "kube-system"}
_NAMED = {
    "deployment": "Deployment",
    "statefulset": "StatefulSet",
    "cronjob": "CronJob",
    "pvc": "PersistentVolumeClaim",
    "svc": "Service",
    "service": "Service",
}


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return rendered(ROOT / "charts" / "gpu-dev-server", "postgres: {backup: {enabled: true}}")


def commands(handbook: Path) -> Iterator[str]:
    for block in re.findall(r"^```\w*\n(.*?)^```$", handbook.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            yield from re.findall(r"\bkubectl [^|;#]+", line)


def apps(objects: list[dict[str, Any]]) -> set[str]:
    """Labels that pods of ours bear."""
    found = set()
    for one in objects:
        spec = one.get("spec") or {}
        template = (spec.get("jobTemplate", {}).get("spec", {}) or spec).get("template") or {}
        found |= {template.get("metadata", {}).get("labels", {}).get("app")}
    return found - {None}


def names(objects: list[dict[str, Any]], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}


def test_the_handbooks_are_looked_at() -> None:
    assert sum(1 for handbook in HANDBOOKS for _ in commands(handbook)) > 40


@pytest.mark.parametrize("handbook", HANDBOOKS, ids=lambda path: path.stem)
def test_what_kubectl_is_asked_for_is_there(handbook: Path, objects: list[dict[str, Any]]) -> None:
    pods = {f"{name}-0" for name in names(objects, "StatefulSet")}
    for command in commands(handbook):
        inside = re.search(r" (?:-n|--namespace)[ =](\S+)", command)
        assert inside is None or inside[1] in NAMESPACES or inside[1].isupper(), command
        if inside is None or inside[1] != CONTROLPLANE:
            continue
        for app in re.findall(r"-l app=([\w-]+)", command):
            assert app in apps(objects), command
        for kind, name in re.findall(r"\b(deployment|statefulset|cronjob|pvc|svc|service)/([\w-]+)", command):
            assert name in names(objects, _NAMED[kind]), command
        assert set(re.findall(r"\b(postgres-[a-z]+-\d)\b", command)) <= pods, command


def test_people_find_what_they_knew_before(objects: list[dict[str, Any]]) -> None:
    """Services with their ports, claims with their sizes, the rhythm of CronJobs."""
    ports = {one["metadata"]["name"]: one["spec"]["ports"][0]["port"] for one in objects if one["kind"] == "Service"}
    known = {"postgres-primary": 5432, "postgres-replica": 5432, "registry-ghcr": 5000, "api-service": 80}
    assert ports.items() >= (known | {"api-service-public": 80}).items()
    sizes = {
        one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"]
        for one in objects
        if one["kind"] == "PersistentVolumeClaim"
    }
    assert sizes.items() >= {"postgres-primary-data": "100Gi", "postgres-replica-data": "100Gi"}.items()
    rhythm = {one["metadata"]["name"]: one["spec"]["schedule"] for one in objects if one["kind"] == "CronJob"}
    assert rhythm.items() >= {"reservation-expiry": "*/5 * * * *", "availability-updater": "*/5 * * * *"}.items()
    assert {"api-service", "postgres", "registry-cache", "ssh-proxy", "reservation-processor"} <= apps(objects)
