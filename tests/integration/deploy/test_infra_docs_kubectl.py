"""Every `kubectl` that a handbook tells people to type means something that the chart makes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.deploy.helm_template import rendered
from support.deploy.opentofu_programs import ROOT
from support.deploy.printed_commands import apps, check_kubectl

pytestmark = pytest.mark.slow
HANDBOOKS = sorted((ROOT / "docs" / "operations").glob("*.md"))


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return rendered(ROOT / "charts" / "gpu-dev-server", "postgres: {backup: {enabled: true}}")


def commands(handbook: Path) -> Iterator[str]:
    for block in re.findall(r"^```\w*\n(.*?)^```$", handbook.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            yield from re.findall(r"\bkubectl [^|;#]+", line)


def test_the_handbooks_are_looked_at() -> None:
    assert sum(1 for handbook in HANDBOOKS for _ in commands(handbook)) > 40


@pytest.mark.parametrize("handbook", HANDBOOKS, ids=lambda path: path.stem)
def test_what_kubectl_is_asked_for_is_there(handbook: Path, objects: list[dict[str, Any]]) -> None:
    for command in commands(handbook):
        check_kubectl(command, objects)


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
