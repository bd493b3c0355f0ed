"""`python -m bench.reconcile_parts PART`: one measurement in its own process.

Prints seconds and peak memory as JSON. The environment names cluster, cloud and database."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from gpudev.adapters.aws.client import AwsClient
from gpudev.adapters.aws.cloud import AwsCloud
from gpudev.adapters.aws.permissions import Action
from gpudev.adapters.kubernetes.client.kubernetes_api import connect_api
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD, ResourceKind
from gpudev.adapters.kubernetes.cluster import KubernetesCluster
from gpudev.adapters.kubernetes.uncached_access import UncachedCluster
from gpudev.adapters.postgres.stores import open_stores
from gpudev.bootstrap.service_runtime import tune_garbage_collector
from gpudev.domain.cluster import Catalogue, load_catalogue
from gpudev.planning.cluster.reconcile_availability import plan_availability
from gpudev.ports.clock import SystemClock
from gpudev.ports.cloud import OWNER_TAG
from gpudev.ports.cluster import AvailabilityRow, ClusterState
from gpudev.settings import KubernetesSettings, load_settings
from gpudev.workflows.cluster.reconcile_availability import AvailabilityReconciliation
from gpudev.workflows.disks.reconcile_disks import DiskReconciliation

_PAGE = 500
_LIVE_ROUNDS = 30


async def bare_pages() -> dict[str, Any]:
    """Fetch and decode the same pages, both kinds concurrently."""
    api = connect_api(_kubernetes())

    async def fetch(kind: ResourceKind) -> int:
        params = {"limit": str(_PAGE)}
        count = 0
        while True:
            answer = orjson.loads(await api._transport.request("GET", kind.path(), params))
            count += len(answer["items"])
            if not answer["metadata"].get("continue"):
                return count
            params = {"limit": str(_PAGE), "continue": answer["metadata"]["continue"]}

    began = time.perf_counter()
    nodes, pods = await asyncio.gather(fetch(NODE), fetch(POD))
    took = time.perf_counter() - began
    await api.close()
    return {"seconds": took, "nodes": nodes, "pods": pods}


async def cold() -> dict[str, Any]:
    """`reconcile availability` without writing: observe and compute."""
    async with _availability() as reconciling:
        began = time.perf_counter()
        report = await reconciling.run(dry_run=True)
        took = time.perf_counter() - began
    assert report.succeeded, report.errors
    return {"seconds": took, "available": report.updated["h100"]["available_gpus"][1]}


async def live() -> dict[str, Any]:
    """From the processor's cache, after a change each time; and a complete observation while all dev servers are
    starting, so that each is computed again."""
    cluster = KubernetesCluster(_kubernetes(), load_catalogue(), SystemClock())
    await cluster.start()
    took, looks = [], []
    try:
        state = await cluster.observe()
        for number in range(_LIVE_ROUNDS):
            cluster.cache._node_pod_tuples.pop(
                state.nodes[number].name, None
            )  # as if a pod had been added or removed there
            began = time.perf_counter()
            _plan(replace(state, nodes=cluster._state.compute_nodes().nodes))
            took.append(time.perf_counter() - began)
            began = time.perf_counter()
            await cluster.observe()
            looks.append(time.perf_counter() - began)
            await asyncio.sleep(0)  # lets the cache continue
    finally:
        await cluster.close()
    return {"seconds": median(took), "worst": max(took), "look": median(looks), "nodes": len(state.nodes)}


async def bare_listing() -> dict[str, Any]:
    """Only list volumes and snapshots, all pages."""
    caller = AwsClient(load_settings().aws)
    await caller.start()
    of_volumes = {"Filters": [{"Name": "tag-key", "Values": [OWNER_TAG]}], "MaxResults": 1000}
    began = time.perf_counter()
    volumes = [one async for page in caller.list_pages(Action.DESCRIBE_VOLUMES, "Volumes", of_volumes) for one in page]
    of_snapshots = {"OwnerIds": ["self"], "MaxResults": 1000}
    pages = caller.list_pages(Action.DESCRIBE_SNAPSHOTS, "Snapshots", of_snapshots)
    snapshots = [one async for page in pages for one in page]
    took = time.perf_counter() - began
    await caller.close()
    return {"seconds": took, "volumes": len(volumes), "snapshots": len(snapshots)}


async def library_listing() -> dict[str, Any]:
    """The same with the AWS library's own parser."""
    from aiobotocore.session import get_session

    async with get_session().create_client("ec2", region_name=load_settings().aws.region) as client:
        began = time.perf_counter()
        volumes = client.get_paginator("describe_volumes").paginate(
            Filters=[{"Name": "tag-key", "Values": [OWNER_TAG]}], PaginationConfig={"PageSize": 1000}
        )
        snapshots = client.get_paginator("describe_snapshots").paginate(
            OwnerIds=["self"], PaginationConfig={"PageSize": 1000}
        )
        count = [len(page["Volumes"]) async for page in volumes] + [len(page["Snapshots"]) async for page in snapshots]
        return {"seconds": time.perf_counter() - began, "things": sum(count)}


async def disks() -> dict[str, Any]:
    """`reconcile disks`."""
    settings = load_settings()
    stores, cloud = open_stores(settings), AwsCloud(settings.aws)
    await cloud.start()
    await stores.pool.ping()
    began = time.perf_counter()
    report = await DiskReconciliation(cloud, stores.disk_records, SystemClock(), "bench").run()
    took = time.perf_counter() - began
    await cloud.close()
    await stores.close()
    assert report.succeeded, report.errors[:3]
    return {"seconds": took, "synced": report.statistics.synced, "created": report.statistics.created}


class _NoRows:
    """An empty database, so that only the cluster is measured."""

    async def refresh(self) -> list[Any]:
        return []

    async def type_names(self) -> list[str]:
        return list(load_catalogue())

    async def availability(self) -> list[AvailabilityRow]:
        return []

    async def cordons(self) -> dict[str, Any]:
        return {}

    async def write_if_newer(self, _row: AvailabilityRow) -> bool:
        return True


@contextlib.asynccontextmanager
async def _availability() -> AsyncIterator[AvailabilityReconciliation]:
    async def catalogue() -> Catalogue:
        return load_catalogue()

    reading, nothing = UncachedCluster(_kubernetes(), catalogue, SystemClock()), _NoRows()
    yield AvailabilityReconciliation(
        reading, nothing, None, nothing, catalogue, nothing, SystemClock(), "pytorch-gpu-dev", "bench"
    )
    await reading.close()


def _plan(state: ClusterState) -> None:
    for gpu_type in load_catalogue().values():
        nodes = [node for node in state.nodes if node.gpu_type == gpu_type.name]
        plan_availability(gpu_type, nodes, [], None, at=state.at, by="bench")


def _kubernetes() -> KubernetesSettings:
    """Uses a namespace that every cluster has, so that none has to be created."""
    return KubernetesSettings(access="kubeconfig", kubeconfig=os.environ["KUBECONFIG"], namespace="default")


PARTS: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
    "bare_pages": bare_pages,
    "cold": cold,
    "live": live,
    "bare_listing": bare_listing,
    "library_listing": library_listing,
    "disks": disks,
}


def _most_memory() -> float:
    """Of this program; getrusage may return the peak of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


async def _run(part: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    return await part()


def main(part: str) -> None:
    tune_garbage_collector()  # as the commands do
    found = asyncio.run(_run(PARTS[part]))
    found["mib"] = _most_memory()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
