"""`kubernetes`: how fast reservations become pods, and the processor's memory on a big cluster, on this machine.

The API server, etcd, scheduler and controllers are real, with KWOK's nodes; PostgreSQL, our API and our processor are
separate processes. All share this machine's cores with the benchmark. "Visible" means that a watch on the pods has
reported it.
"""

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from bench.figures import percentile, report
from bench.kubernetes_client import BENCH_KEY, Submitter, prepared_database
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, connect_api
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD, SERVICE, Manifest, ResourceKind
from gpudev.adapters.kubernetes.objects import server_manifests
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory
from gpudev.adapters.kubernetes.objects.pod_manifest import MemberPlacement, StorageClaims, build_pod
from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import UserId, new_reservation_id, pod_name
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings
from support.kubernetes.control_plane import ControlPlane

_NODES, _ADMISSIONS, _SINGLE = 500, 2_000, 100
_MANY_NODES, _OURS, _FOREIGN = 1_000, 2_500, 5_500
_AT_ONCE = 32
_PATIENCE_S = 300.0


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as name:
        folder = Path(name)
        with ControlPlane(folder / "kube", faults=False) as plane:
            asyncio.run(_measure(plane, folder))


async def _measure(plane: ControlPlane, folder: Path) -> None:
    settings = KubernetesSettings(access="kubeconfig", kubeconfig=str(plane.kubeconfig))
    api = connect_api(settings)
    try:
        await _add_nodes(api, range(_NODES), plane)
        bare = await _bare_creation(api, settings)
        async with prepared_database(folder) as (environment, submitter):
            environment |= {"KUBECONFIG": str(plane.kubeconfig), "GPU_DEV_KUBE_ACCESS": "kubeconfig"}
            with _processor(environment, folder) as processor:
                await _visible_when_idle(api, submitter)
                await _sustained(api, submitter, bare)
                await _memory(api, submitter, processor, plane)
    finally:
        await api.close()


# --- From submit to pod ------------------------------------------------------------------------------------------


async def _visible_when_idle(api: KubernetesApi, submitter: Submitter) -> None:
    """One at a time, each after the previous one runs and the system is idle."""
    took: list[float] = []
    async with _watched_pods(api, "gpu-dev") as pods:
        for number in range(_SINGLE + 5):
            begun = time.perf_counter()
            reservation_id = await submitter.submit()
            visible_at = await pods.visible(pod_name(reservation_id))
            if number >= 5:  # the first ones are warm-up
                took.append((visible_at - begun) * 1000)
            await pods.ready(pod_name(reservation_id))
            await asyncio.sleep(0.4)
    report("kubernetes", "submit to pod object visible, idle, p50", percentile(took, 0.5), "ms", None)
    report("kubernetes", "submit to pod object visible, idle, p99", percentile(took, 0.99), "ms", 50)


async def _sustained(api: KubernetesApi, submitter: Submitter, bare: float) -> None:
    """All at once, from the first submit until the last pod is visible."""
    async with _watched_pods(api, "gpu-dev") as pods:
        begun = time.perf_counter()
        ids = await submitter.submit_many(_ADMISSIONS)
        submitted = time.perf_counter() - begun
        for reservation_id in ids:
            await pods.visible(pod_name(reservation_id))
        took = time.perf_counter() - begun
        for reservation_id in ids:
            await pods.ready(pod_name(reservation_id))
        all_ready = time.perf_counter() - begun
    rate = _ADMISSIONS / took
    report("kubernetes", f"{_ADMISSIONS} submits, all written after", submitted, "s", None)
    report("kubernetes", f"{_ADMISSIONS} submits, all pods ready after", all_ready, "s", None)
    report("kubernetes", "admissions, sustained", rate, "per s", 100, at_most=False)
    report("kubernetes", "admissions / bare creation", rate / bare, "x", 0.5, at_most=False)


async def _bare_creation(api: KubernetesApi, settings: KubernetesSettings) -> float:
    """Create only the same pods and services with the same client; removed before the rest begins."""
    elsewhere = KubernetesSettings(namespace="bare", access=settings.access, kubeconfig=settings.kubeconfig)
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bare"}})
    wanted = []
    for number in range(_ADMISSIONS):
        spec = _spec(_node_name(number % _NODES))
        place = MemberPlacement(spec.shares[0], CpuMemory(20_000, 200_000))
        wanted.append(
            (
                build_pod(spec, place, elsewhere, StorageClaims(), "key"),
                server_manifests.build_ssh_service(spec, elsewhere, "key"),
            )
        )
    async with _watched_pods(api, "bare") as pods:
        begun = time.perf_counter()

        async def create(pair: Sequence[dict[str, Any]]) -> None:
            await asyncio.gather(*(api.create(manifest) for manifest in pair))

        await _each(wanted, create)
        for manifest, _ in wanted:
            await pods.visible(manifest["metadata"]["name"])
        rate = _ADMISSIONS / (time.perf_counter() - begun)
        for manifest, _ in wanted:
            await pods.ready(manifest["metadata"]["name"])
    report("kubernetes", "bare creation of the same pods and services", rate, "per s", None)
    await _remove_all(api, "bare")
    return rate


async def _remove_all(api: KubernetesApi, namespace: str) -> None:
    for kind in (POD, SERVICE):
        items, _ = await api.list_objects(kind, namespace=namespace)
        await _each(items, functools.partial(_remove, api, kind, namespace))

    async def are_gone() -> bool:
        return not (await api.list_objects(POD, namespace=namespace))[0]

    await _until(are_gone)


async def _remove(api: KubernetesApi, kind: ResourceKind, namespace: str, found: Manifest) -> None:
    await api.delete(kind, found["metadata"]["name"], namespace=namespace, grace_seconds=0)


# --- A big cluster -----------------------------------------------------------------------------------------------


async def _memory(api: KubernetesApi, submitter: Submitter, processor: psutil.Process, plane: ControlPlane) -> None:
    """Adds to the earlier runs' pods: our pods on half of the nodes, other pods on the other half."""
    before = processor.memory_info().rss / 1e6
    await _add_nodes(api, range(_NODES, _MANY_NODES), plane)
    ours = len((await api.list_objects(POD, selector="gpu-dev/reservation-id"))[0])
    await submitter.submit_many(_OURS - ours)
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "foreign"}})
    await _each(range(_FOREIGN), lambda number: api.create(_foreign_pod(number)))

    async def are_there() -> bool:
        return len((await api.list_objects(POD, selector="gpu-dev/reservation-id"))[0]) >= _OURS

    await _until(are_there)
    await asyncio.sleep(5)
    after = processor.memory_info().rss / 1e6
    report("kubernetes", f"processor memory at {_NODES} nodes with {ours} pods of ours", before, "MB", None)
    what = f"{_MANY_NODES} nodes with {_OURS} pods of ours and {_FOREIGN} foreign ones"
    report("kubernetes", f"processor memory at {what}", after, "MB", None)


def _foreign_pod(number: int) -> dict[str, Any]:
    """Other pods without GPUs, as on every cluster."""
    container = {"name": "main", "image": "work:1", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"work-{number}", "namespace": "foreign", "labels": {"app": "work"}},
        "spec": {"nodeName": _node_name(_NODES + number % (_MANY_NODES - _NODES)), "containers": [container]},
    }


# --- Parts -------------------------------------------------------------------------------------------------------


class _Pods:
    """When a watch first reported each pod, and first reported it ready."""

    def __init__(self) -> None:
        self._visible: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._changed = asyncio.Event()

    def record(self, event_type: str, manifest: Any) -> None:
        now, name = time.perf_counter(), manifest["metadata"].get("name")
        if event_type in ("ADDED", "MODIFIED"):
            self._visible.setdefault(name, now)
            conditions = manifest.get("status", {}).get("conditions") or ()
            if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
                self._ready.setdefault(name, now)
            self._changed.set()

    async def visible(self, name: str) -> float:
        return await self._when(self._visible, name)

    async def ready(self, name: str) -> float:
        return await self._when(self._ready, name)

    async def _when(self, times: dict[str, float], name: str) -> float:
        async with asyncio.timeout(_PATIENCE_S):
            while name not in times:
                self._changed.clear()
                await self._changed.wait()
        return times[name]


@contextlib.asynccontextmanager
async def _watched_pods(api: KubernetesApi, namespace: str) -> AsyncIterator[_Pods]:
    _, version = await api.list_objects(POD, namespace=namespace)
    pods = _Pods()

    async def follow() -> None:
        async with api.watch(POD, version, timeout=timedelta(hours=1), namespace=namespace) as events:
            async for event_type, manifest in events:
                pods.record(event_type, manifest)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.2)
    try:
        yield pods
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _processor(environment: dict[str, str], folder: Path) -> Iterator[psutil.Process]:
    with (folder / "processor.log").open("w") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "bench.kubernetes_processor"], env=os.environ | environment, stderr=log
        )
        try:
            yield psutil.Process(started.pid)
        finally:
            started.terminate()
            started.wait(20)


async def _each(things: Any, act: Callable[[Any], Awaitable[object]]) -> None:
    """Run `act` on all of them, concurrently."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(thing: Any) -> None:
        async with slots:
            await act(thing)

    await asyncio.gather(*(one(thing) for thing in things))


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - polls the API server
            await asyncio.sleep(0.3)


async def _add_nodes(api: KubernetesApi, numbers: range, plane: ControlPlane) -> None:
    await _each(numbers, lambda number: api.create(_node(number, plane)))

    async def are_open() -> bool:
        return not any(node["spec"].get("taints") for node in (await api.list_objects(NODE))[0])

    await _until(are_open)


def _node(number: int, plane: ControlPlane) -> dict[str, Any]:
    size = {"cpu": "192", "memory": "2048Gi", "ephemeral-storage": "8Ti", "pods": "250", "nvidia.com/gpu": "8"}
    name = _node_name(number)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "GpuType": "h100",
                "kubernetes.io/hostname": name,
                "node.kubernetes.io/instance-type": "p5.48xlarge",
            },
            "annotations": {"kwok.x-k8s.io/node": plane.node_mark},
        },
        "status": {
            "capacity": size,
            "allocatable": size,
            "addresses": [{"type": "InternalIP", "address": f"10.20.{number // 250}.{number % 250 + 1}"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _node_name(number: int) -> str:
    return f"node-{number:04}"


def _spec(node: str) -> ServerSpec:
    reservation_id = new_reservation_id()
    shares = (NodeShare(0, node, 1),)
    name = pod_name(reservation_id)
    return ServerSpec(reservation_id, name, UserId(1), "bench", "h100", 1, shares, (BENCH_KEY,), None, None)
