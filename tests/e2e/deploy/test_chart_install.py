"""On a real API server: all of the chart is accepted, an upgrade keeps what was made, an uninstall what was stored."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.deploy.helm_chart import CHART, Helm, HelmRefused, Object, parse
from support.deploy.kubectl import Kubectl
from support.kubernetes.api import KubeApi
from support.kubernetes.control_plane import ControlPlane
from support.paths import SUPPORT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLES = SUPPORT / "deploy" / "chart_examples"


@dataclass
class Release:
    """With namespaces and cluster-wide names of its own, so that several are there at once."""

    helm: Helm
    plane: ControlPlane
    api: KubeApi
    name: str = field(default_factory=lambda: f"r{uuid.uuid4().hex[:6]}")

    def __post_init__(self) -> None:
        self.controlplane, self.workloads = f"{self.name}-control", f"{self.name}-work"

    async def install(self, *files: str | Path, **values: Object) -> None:
        await self._helm("install", *files, **values)

    async def upgrade(self, *files: str | Path, **values: Object) -> None:
        await self._helm("upgrade", *files, **values)

    async def uninstall(self) -> None:
        await asyncio.to_thread(self.helm.run, "uninstall", self.name, kubeconfig=self.plane.kubeconfig)

    async def password(self) -> str:
        secret = await self.api.get("secrets", "postgres-credentials", self.controlplane)
        found: str = secret["data"]["POSTGRES_PASSWORD"]
        return found

    async def _helm(self, verb: str, *files: str | Path, **values: Object) -> None:
        own = {
            "namespaces": {"controlplane": self.controlplane, "workloads": self.workloads},
            "global": {"prefix": self.name},
            **values,
        }
        arguments = self.helm.value_arguments(*files, values=own)
        await asyncio.to_thread(
            self.helm.run, verb, self.name, str(CHART), *arguments, kubeconfig=self.plane.kubeconfig
        )


@pytest.fixture
async def release(helm: Helm, plane: ControlPlane) -> AsyncIterator[Release]:
    api = await KubeApi.connect(plane.kubeconfig)
    made = Release(helm, plane, api)
    yield made
    await api.close()


@pytest.mark.parametrize(
    "files",
    [(), ("values-aws.yaml", EXAMPLES / "aws.yaml"), ("values-gcp.yaml", EXAMPLES / "gcp.yaml")],
    ids=["default", "aws", "gcp"],
)
async def test_a_real_api_server_accepts_all_of_it_to_the_last_field(release: Release, files: tuple[str, ...]) -> None:
    """kubectl asks for strict validation: a field that Kubernetes does not know is an error, not a loss."""
    values = {
        "namespaces": {"controlplane": release.controlplane, "workloads": release.workloads},
        "sshProxy": {"public": {"enabled": True}},
        "apiService": {"ingress": {"enabled": True, "host": "gpu.example.com", "tlsSecret": "tls"}},
        "postgres": {"backup": {"s3Url": "s3://bucket/x"}},
    }
    rendered = release.helm.render(*files, values=values, release=release.name)
    for name in (release.controlplane, release.workloads):
        await release.api.create("namespaces", {"metadata": {"name": name}})
    kubectl = Kubectl(release.helm.program.with_name("kubectl"), release.plane.kubeconfig)
    # A pod is admitted only where its priority class and its account are there already: see below.
    objects = [one for one in rendered.objects if one["kind"] not in ("Namespace", "Pod")]
    assert len(await asyncio.to_thread(kubectl.try_strictly, objects)) == len(objects)


async def test_the_password_and_all_that_is_stored_outlive_upgrade_uninstall_and_a_new_install(
    release: Release,
) -> None:
    await release.install("values-aws.yaml")
    first = await release.password()
    assert len(first) > 30
    namespace = await release.api.get("namespaces", release.controlplane)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    claims = {one["metadata"]["uid"] for one in await _claims(release)}
    assert len(claims) == 5

    await release.upgrade("values-aws.yaml", apiService={"replicas": 3})
    assert await release.password() == first
    api = await release.api.get("deployments", "api-service", release.controlplane)
    assert api["spec"]["replicas"] == 3
    jobs = await release.api.list("jobs", release.controlplane, selector="app=migrate")
    assert any(one["metadata"]["name"].startswith("migrate-2-") for one in jobs), "each revision migrates"

    await release.uninstall()
    assert await release.api.find("deployments", "api-service", release.controlplane) is None
    assert await release.password() == first
    assert {one["metadata"]["uid"] for one in await _claims(release)} == claims

    await release.install("values-aws.yaml")
    assert await release.password() == first, "it opens the data that is there"
    assert {one["metadata"]["uid"] for one in await _claims(release)} == claims
    await release.uninstall()


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
async def test_the_specified_upgrade_which_leaves_out_the_clouds_own_file_changes_no_claim(
    release: Release, cloud: str
) -> None:
    """A claim's class can never be changed: it stays what it was made with, whatever the values say later."""
    await release.install(f"values-{cloud}.yaml", EXAMPLES / f"{cloud}.yaml")
    classes = {one["metadata"]["name"]: one["spec"]["storageClassName"] for one in await _claims(release)}
    assert set(classes.values()) == {{"aws": "gp3", "gcp": "pd-ssd"}[cloud]}
    await release.upgrade(EXAMPLES / f"{cloud}.yaml", postgres={"primary": {"storage": {"class": "other"}}})
    after = {one["metadata"]["name"]: one["spec"]["storageClassName"] for one in await _claims(release)}
    assert after == classes
    await release.uninstall()
    await release.install()
    await release.uninstall()


async def test_namespaces_and_classes_of_somebody_else_are_taken_as_they_are(release: Release) -> None:
    for name, labels in ((release.controlplane, {"team": "x"}), (release.workloads, {})):
        await release.api.create("namespaces", {"metadata": {"name": name, "labels": labels}})
    own_class = {
        "metadata": {"name": f"fast-{release.name}"},
        "provisioner": "example.com/disks",
        "parameters": {"kind": "fast"},
    }
    await release.api.create("storageclasses", own_class)
    await release.install("values-aws.yaml", storage={"class": f"fast-{release.name}"})
    namespace = await release.api.get("namespaces", release.controlplane)
    assert namespace["metadata"]["labels"]["team"] == "x"
    assert "pod-security.kubernetes.io/enforce" not in namespace["metadata"]["labels"]
    found = await release.api.get("storageclasses", f"fast-{release.name}")
    assert found["provisioner"] == "example.com/disks"
    [primary] = [one for one in await _claims(release) if one["metadata"]["name"] == "postgres-primary-data"]
    assert primary["spec"]["storageClassName"] == f"fast-{release.name}"
    await release.uninstall()
    assert await release.api.find("namespaces", release.controlplane) is not None


async def test_pods_of_the_control_plane_pass_the_restricted_level_they_are_held_to(release: Release) -> None:
    """The namespace enforces it; a pod that does not keep it is never made, and its owner says so."""
    await release.install()
    hook = release.helm.run("get", "hooks", release.name, kubeconfig=release.plane.kubeconfig)
    [tried] = [one for one in parse(hook) if one["kind"] == "Pod"]
    await release.api.wait("serviceaccounts", "default", release.controlplane, bool)
    await release.api.create("pods", tried, release.controlplane)
    for kind in ("deployments", "statefulsets"):
        for one in await release.api.list(kind, release.controlplane):
            name = one["metadata"]["name"]
            template = one["spec"]["template"]
            pod = {
                "metadata": {"name": f"try-{name}", "labels": template["metadata"]["labels"]},
                "spec": template["spec"],
            }
            made = await release.api.create("pods", pod, release.controlplane)
            await release.api.delete("pods", made["metadata"]["name"], release.controlplane, grace=0)
    await release.uninstall()


async def test_helm_says_what_is_wrong_before_anything_is_made(release: Release) -> None:
    with pytest.raises(HelmRefused, match="additional properties 'replica' not allowed"):
        await release.install(apiService={"replica": 2})
    assert await release.api.find("namespaces", release.controlplane) is None


async def _claims(release: Release) -> list[Object]:
    """As people find them for the clean-up."""
    selector = f"app.kubernetes.io/instance={release.name}"
    return await release.api.list("persistentvolumeclaims", release.controlplane, selector=selector)
