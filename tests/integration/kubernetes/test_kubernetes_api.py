"""Our client of the Kubernetes API, on a real API server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpudev.adapters.kubernetes.client.kubernetes_api import ApiRejected, KubernetesApi, connect_api
from gpudev.adapters.kubernetes.client.resource_kinds import CONFIG_MAP, NAMESPACE, NODE, POD, SECRET
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.settings import KubernetesSettings
from support.kubernetes.api import KubeApi, is_ready
from support.kubernetes.control_plane import Cluster
from support.kubernetes.fake_nodes import FakeNodes
from support.ports import free_port

pytestmark = pytest.mark.slow
SECOND = timedelta(seconds=1)


@pytest.fixture
async def api(kube: Cluster, namespace: str) -> AsyncIterator[KubernetesApi]:
    api = connect_api(KubernetesSettings(kubeconfig=str(kube.kubeconfig), namespace=namespace))
    yield api
    await api.close()


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": "test"}}, "data": data}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "example.test/main:1"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


async def test_a_listing_is_complete_over_many_pages_of_one_moment(api: KubernetesApi) -> None:
    for number in range(5):
        await api.create(config_map(f"map-{number}"))
    pages = [page async for page in api.list_pages(CONFIG_MAP, namespace=api.namespace, selector="of=test", size=2)]
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert len({page.resource_version for page in pages}) == 1
    items, version = await api.list_objects(CONFIG_MAP, selector="of=test")
    assert sorted(item["metadata"]["name"] for item in items) == [f"map-{number}" for number in range(5)]
    assert int(version) > 0


async def test_a_listing_knows_our_namespace_or_all_of_them(api: KubernetesApi) -> None:
    await api.create(config_map("one"))
    inside, _ = await api.list_objects(CONFIG_MAP)
    everywhere, _ = await api.list_objects(CONFIG_MAP, all_namespaces=True)
    assert {item["metadata"]["namespace"] for item in inside} == {api.namespace}
    assert {item["metadata"]["namespace"] for item in everywhere} > {api.namespace}


async def test_what_is_not_there_is_none_and_deleting_it_is_no_error(api: KubernetesApi) -> None:
    assert await api.find_object(POD, "nobody") is None
    assert await api.delete(POD, "nobody") is False
    assert await api.patch(POD, "nobody", {"metadata": {"labels": {"a": "b"}}}) is None
    assert await api.find_pod_log("nobody", "main", 10) is None


async def test_a_name_that_is_taken_is_refused_with_the_reason(api: KubernetesApi) -> None:
    await api.create(config_map("one"))
    with pytest.raises(ApiRejected, match="already exists") as refusal:
        await api.create(config_map("one"))
    assert (refusal.value.status, refusal.value.reason) == (409, "AlreadyExists")


async def test_applying_twice_is_applying_once_and_ours_wins(api: KubernetesApi, kube_api: KubeApi) -> None:
    first = await api.apply(config_map("one", ours="1"))
    again = await api.apply(config_map("one", ours="1"))
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    await kube_api.patch("configmaps", "one", {"data": {"ours": "changed", "theirs": "2"}}, api.namespace)
    merged = await api.apply(config_map("one", ours="1"))
    assert merged["data"] == {"ours": "1", "theirs": "2"}


async def test_deleting_by_uid_leaves_another_of_that_name_alone(api: KubernetesApi) -> None:
    old = await api.create(config_map("one"))
    assert await api.delete(CONFIG_MAP, "one", uid=old["metadata"]["uid"])
    await api.create(config_map("one"))
    assert await api.delete(CONFIG_MAP, "one", uid=old["metadata"]["uid"]) is False
    assert await api.find_object(CONFIG_MAP, "one") is not None


async def test_what_makes_no_sense_is_refused_with_the_servers_words(api: KubernetesApi) -> None:
    with pytest.raises(ApiRejected, match=r"spec\.restartPolicy") as refusal:
        await api.create(pod("bad", restartPolicy="Perhaps"))
    assert refusal.value.reason == "Invalid"


async def test_what_we_may_not_do_is_refused(kube: Cluster, kube_api: KubeApi, namespace: str) -> None:
    token = await kube_api.service_account_token("nobody", namespace)
    settings = KubernetesSettings(kubeconfig=str(kube.kubeconfig_with(token=token)), namespace=namespace)
    api = connect_api(settings)
    try:
        with pytest.raises(ApiRejected, match="cannot list resource") as refusal:
            await api.list_objects(SECRET)
    finally:
        await api.close()
    assert refusal.value.status == 403


async def test_credentials_nobody_takes_are_unavailable_not_a_refusal(kube: Cluster) -> None:
    api = connect_api(KubernetesSettings(kubeconfig=str(kube.kubeconfig_with(token="wrong"))))
    try:
        with pytest.raises(Unavailable, match="rejects our credentials"):
            await api.list_objects(POD)
    finally:
        await api.close()


async def test_a_server_that_cannot_be_reached_is_unavailable_soon(kube: Cluster) -> None:
    port = free_port()
    api = connect_api(KubernetesSettings(kubeconfig=str(kube.kubeconfig_with(server=f"https://127.0.0.1:{port}"))))
    began = time.monotonic()
    try:
        for call in (
            api.list_objects(POD),
            api.create(config_map("x")),
            api.delete(POD, "x"),
            api.find_object(POD, "x"),
        ):
            with pytest.raises(Unavailable, match="does not answer"):
                await call
        with pytest.raises(Unavailable):
            await api.exec_in_pod("x", "main", ["true"])
    finally:
        await api.close()
    assert time.monotonic() - began < 15


async def test_a_certificate_of_another_authority_is_not_trusted(kube: Cluster, tmp_path: Path) -> None:
    document = json.loads(kube.kubeconfig_with().read_text())
    del document["clusters"][0]["cluster"]["certificate-authority-data"]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    api = connect_api(KubernetesSettings(kubeconfig=str(path)))
    try:
        with pytest.raises(Unavailable, match="certificate"):
            await api.list_objects(POD)
    finally:
        await api.close()


async def test_a_watch_tells_all_that_happened_after_a_version_and_ends(api: KubernetesApi) -> None:
    _, version = await api.list_objects(CONFIG_MAP)
    await api.create(config_map("one", a="1"))
    await api.apply(config_map("one", a="2"))
    await api.delete(CONFIG_MAP, "one")
    async with api.watch(CONFIG_MAP, version, timeout=SECOND, namespace=api.namespace, selector="of=test") as events:
        told = [(what, item["data"]["a"]) async for what, item in events if what != "BOOKMARK"]
    assert told == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]


async def test_objects_larger_than_any_buffer_come_whole(api: KubernetesApi) -> None:
    _, version = await api.list_objects(CONFIG_MAP)
    text = "x" * 900_000
    await api.create(config_map("large", text=text))
    async with api.watch(CONFIG_MAP, version, timeout=2 * SECOND, namespace=api.namespace) as events:
        told = [item["data"].get("text") async for what, item in events if what == "ADDED"]
    assert text in told


async def test_logs_and_commands_in_a_pod(
    api: KubernetesApi, kube: Cluster, kube_api: KubeApi, fake_nodes: FakeNodes
) -> None:
    node = await fake_nodes.add("n1")
    await api.create(pod("one", nodeName=node))
    await kube_api.wait("pods", "one", api.namespace, is_ready)
    kube.set_pod_log("first\nsecond\nlast\n")
    assert await api.find_pod_log("one", "main", 2) in ("second\nlast\n", "first\nsecond\nlast\n")
    assert await api.exec_in_pod("one", "main", ["printf", "%s", "a b; $HOME"]) == b"a b; $HOME"
    with pytest.raises(ClusterError, match="it went wrong"):
        await api.exec_in_pod("one", "main", ["sh", "-c", "echo it went wrong >&2; exit 3"])
    with pytest.raises(Unavailable, match=r"did not end within 0\.3 s"):
        await api.exec_in_pod("one", "main", ["sleep", "5"], timeout=timedelta(seconds=0.3))
    with pytest.raises(ApiRejected):
        await api.exec_in_pod("nobody", "main", ["true"])


async def test_many_calls_at_once_all_succeed(api: KubernetesApi) -> None:
    await asyncio.gather(*(api.apply(config_map(f"map-{number}")) for number in range(150)))
    items, _ = await api.list_objects(CONFIG_MAP, selector="of=test")
    assert len(items) == 150


# Credentials


async def test_a_rotated_token_is_read_again_when_the_old_is_refused(kube: Cluster, tmp_path: Path) -> None:
    document = json.loads(kube.kubeconfig_with().read_text())
    good = document["users"][0]["user"]["token"]
    path, token = tmp_path / "kubeconfig", tmp_path / "token"
    document["users"][0]["user"] = {"tokenFile": str(token)}
    path.write_text(json.dumps(document))
    token.write_text(good)
    api = connect_api(KubernetesSettings(kubeconfig=str(path)))
    try:
        await api.list_objects(NODE)
        token.write_text("ended\n")
        await _renewed(api, lambda: token.write_text(good + "\n"))
    finally:
        await api.close()


async def test_a_plugin_makes_tokens_and_is_run_again_when_one_is_refused(kube: Cluster, tmp_path: Path) -> None:
    document = json.loads(kube.kubeconfig_with().read_text())
    version = "client.authentication.k8s.io/v1"
    answer = {
        "apiVersion": version,
        "kind": "ExecCredential",
        "status": {"token": document["users"][0]["user"]["token"]},
    }
    said, runs, script, path = (tmp_path / name for name in ("said", "runs", "plugin", "kubeconfig"))
    said.write_text(json.dumps(answer))
    script.write_text(f"#!/bin/sh\necho x >> {runs}\ncat {said}\n")
    script.chmod(0o755)
    document["users"][0]["user"] = {"exec": {"apiVersion": version, "command": str(script), "interactiveMode": "Never"}}
    path.write_text(json.dumps(document))
    api = connect_api(KubernetesSettings(kubeconfig=str(path)))
    try:
        await api.list_objects(NODE)
        await api.list_objects(NODE)
        assert runs.read_text().count("x") == 1
        said.write_text(json.dumps({**answer, "status": {"token": "ended"}}))
        await _renewed(api, lambda: said.write_text(json.dumps(answer)))
    finally:
        await api.close()


async def test_a_pods_service_account_is_used_inside_and_its_token_rotates(
    kube: Cluster, kube_api: KubeApi, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes_asyncio.config import incluster_config

    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    good = json.loads(kube.kubeconfig_with().read_text())["users"][0]["user"]["token"]
    authority.write_bytes(kube.certificate_authority.read_bytes())
    token.write_text(good)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", kube.url.rsplit(":", 1)[1])
    api = connect_api(KubernetesSettings(access="in-cluster", namespace=namespace))
    try:
        await api.list_objects(NAMESPACE)
        token.write_text("ended")
        await _renewed(api, lambda: token.write_text(good))
    finally:
        await api.close()


@pytest.mark.parametrize("content", [None, "", "not: [a", "apiVersion: v1"])
async def test_a_kubeconfig_that_is_missing_or_broken_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    api = connect_api(KubernetesSettings(kubeconfig=str(path)))
    try:
        with pytest.raises(Unavailable, match="no credentials for the cluster") as problem:
            await api.list_objects(POD)
    finally:
        await api.close()
    assert str(path) in str(problem.value)


async def _renewed(api: KubernetesApi, renew: Callable[[], object]) -> None:
    """From here on the token that is read is a wrong one, until `renew`."""
    credentials = api._transport._credentials
    credentials._read_at = -1e9  # its time is over
    with pytest.raises(Unavailable, match="credentials"):
        await api.list_objects(NODE)
    renew()
    credentials._read_at -= 2  # more than a moment ago: not even refused tokens are read again at once
    await api.list_objects(NODE)
