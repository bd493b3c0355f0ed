"""`reconcile`: time and memory of the reconcilers' observations, compared with the minimum.

A real API server holds static nodes and pods (no KWOK, controllers or scheduler run during the measurement); AWS is our
stub in a separate process. Every figure comes from its own process, and compared figures alternate.
"""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bench.figures import report
from bench.kubernetes_client import prepared_database
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, connect_api
from gpudev.adapters.kubernetes.client.resource_kinds import NODE
from gpudev.adapters.kubernetes.objects import labels
from gpudev.domain.ids import new_reservation_id
from gpudev.settings import KubernetesSettings
from support.kubernetes.control_plane import ControlPlane

_NODES, _PODS, _OURS = 5_000, 40_000, 4_000
_VOLUMES, _SNAPSHOTS = 10_000, 50_000
_ROUNDS = 5
_AT_ONCE = 48


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dev-bench-") as name:
        folder = Path(name)
        asyncio.run(_measure_disks(folder))
        with ControlPlane(folder / "kube", faults=False) as plane:
            asyncio.run(_measure_availability(plane))


# --- Availability ------------------------------------------------------------------------------------------------


async def _measure_availability(plane: ControlPlane) -> None:
    for name in ("kwok", "scheduler", "controller-manager"):
        plane._processes.stop(name, signal.SIGKILL)
    api = connect_api(KubernetesSettings(access="kubeconfig", kubeconfig=str(plane.kubeconfig)))
    began = time.perf_counter()
    await _fill(api)
    await api.close()
    report("reconcile", f"{_NODES + _PODS} objects made in", time.perf_counter() - began, "s", None)
    environment = {"KUBECONFIG": str(plane.kubeconfig)}
    found = _take_turns(("bare_pages", "cold"), environment)
    assert found["bare_pages"][0]["nodes"] == _NODES
    assert found["bare_pages"][0]["pods"] >= _PODS
    ratio = _median(found["cold"]) / _median(found["bare_pages"])
    where = f"{_NODES} nodes / {_PODS} pods"
    report("reconcile", f"{where}: fetching and decoding alone", _median(found["bare_pages"]), "s", None)
    report("reconcile", f"{where}: availability, cold", _median(found["cold"]), "s", None)
    report("reconcile", f"{where}: availability, cold, beside fetching and decoding", ratio, "times", 1.3)
    report("reconcile", f"{where}: memory of it", found["cold"][0]["mib"], "MiB", None)
    live = _part("live", environment)
    report("reconcile", f"{where}: availability from the live watch, p50", live["seconds"] * 1000, "ms", 50)
    report("reconcile", f"{where}: availability from the live watch, worst", live["worst"] * 1000, "ms", None)
    report("reconcile", f"{where}: a whole look, {_OURS} dev servers starting", live["look"] * 1000, "ms", None)
    report("reconcile", f"{where}: memory with the live watch", live["mib"], "MiB", None)


async def _fill(api: KubernetesApi) -> None:
    await _each(range(_NODES), lambda number: api.create(_node(number)))
    # New nodes have a taint until a controller removes it; no controller runs here.
    await _each(range(_NODES), lambda number: api.patch(NODE, _node_name(number), {"spec": {"taints": None}}))
    await _each(range(_PODS), lambda number: api.create(_pod(number)))


def _node_name(number: int) -> str:
    return f"node-{number:05}"


def _node(number: int) -> dict[str, Any]:
    size = {"cpu": "192", "memory": "2048Gi", "ephemeral-storage": "8Ti", "pods": "250", "nvidia.com/gpu": "8"}
    marks = {"GpuType": "h100", "node.kubernetes.io/instance-type": "p5.48xlarge"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _node_name(number), "labels": marks},
        "status": {
            "capacity": size,
            "allocatable": size,
            "addresses": [
                {"type": "InternalIP", "address": f"10.{number // 62500}.{number // 250}.{number % 250 + 1}"}
            ],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _pod(number: int) -> dict[str, Any]:
    """Bound to its node, as a scheduler would; a tenth are our dev servers."""
    ours = number < _OURS
    reservation_id = str(new_reservation_id())
    marks = {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: reservation_id} if ours else {}
    amounts = {"cpu": "4", "memory": "16Gi", **({"nvidia.com/gpu": "1"} if ours or number % 4 == 0 else {})}
    containers = [
        {"name": name, "image": "example/image:1", "resources": {"requests": amounts, "limits": amounts}}
        for name in (["main"] if number % 3 else ["main", "sidecar"])
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"gpu-dev-{reservation_id[:8]}" if ours else f"work-{number:05}",
            "namespace": "default",
            "labels": marks,
        },
        "spec": {
            "nodeName": _node_name(number % _NODES),
            "containers": containers,
            "automountServiceAccountToken": False,
        },
    }


async def _each(things: Any, act: Callable[[Any], Awaitable[object]]) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(thing: Any) -> None:
        async with slots:
            await act(thing)

    await asyncio.gather(*(one(thing) for thing in things))


# --- Disks -------------------------------------------------------------------------------------------------------


async def _measure_disks(folder: Path) -> None:
    async with prepared_database(folder) as (of_database, _):
        with _stub() as of_aws:
            environment = {**of_database, **of_aws}
            first = await asyncio.to_thread(_part, "disks", environment)
            assert first["created"] == _VOLUMES
            found = await asyncio.to_thread(_take_turns, ("bare_listing", "disks"), environment)
            by_library = await asyncio.to_thread(_part, "library_listing", environment)
    assert found["bare_listing"][0]["volumes"] == _VOLUMES
    assert found["bare_listing"][0]["snapshots"] == _SNAPSHOTS
    assert found["disks"][0]["synced"] == _VOLUMES
    where = f"{_VOLUMES} volumes / {_SNAPSHOTS} snapshots"
    ratio = _median(found["disks"]) / _median(found["bare_listing"])
    report("reconcile", f"{where}: listing alone", _median(found["bare_listing"]), "s", None)
    report("reconcile", f"{where}: listing alone, as the AWS library reads it", by_library["seconds"], "s", None)
    report("reconcile", f"{where}: disk pass", _median(found["disks"]), "s", None)
    report("reconcile", f"{where}: disk pass beside the listing alone", ratio, "times", 1.2)
    report("reconcile", f"{where}: memory of it", found["disks"][0]["mib"], "MiB", None)
    report("reconcile", f"{where}: first pass, which imports all", first["seconds"], "s", None)


@contextlib.contextmanager
def _stub() -> Iterator[dict[str, str]]:
    root = Path(__file__).resolve().parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "support.clouds.aws_stub", str(_VOLUMES), str(_SNAPSHOTS)],
        cwd=root / "tests",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        way_there: dict[str, str] = json.loads(process.stdout.readline())
        yield way_there
    finally:
        process.kill()
        process.wait(10)


# --- Both --------------------------------------------------------------------------------------------------------


def _take_turns(parts: tuple[str, ...], environment: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
    for _ in range(_ROUNDS):
        for part in parts:
            found[part].append(_part(part, environment))
    return found


def _part(part: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.reconcile_parts", part],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{part} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _median(found: list[dict[str, Any]]) -> float:
    return float(statistics.median(one["seconds"] for one in found))
