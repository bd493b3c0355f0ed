"""Nodes that KWOK plays: as big and as broken as a test wants them.

Their status is written here and by nobody else, so a node that a test calls lost stays lost. The controller manager
reacts as ever: it taints nodes that are not ready and evicts their pods when their tolerations end.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

from support.kubernetes.api import KubeApi, Object


class FakeNodes:
    """The nodes of one test. `suffix` keeps their names apart from other tests' on the same cluster."""

    def __init__(self, api: KubeApi, mark: str, *, kwok_port: int = 0, suffix: str = "") -> None:
        self._api = api
        self._mark = mark
        self._kwok_port = kwok_port
        self._suffix = suffix
        self.names: list[str] = []

    async def add(self, name: str, **like: Any) -> str:
        """Answers its name in the cluster once pods may be placed there. What it is like: see `_create`."""
        full = await self._create(name, **like)
        await self._api.wait("nodes", full, None, _is_welcomed)
        return full

    async def add_many(self, prefix: str, count: int, **like: Any) -> list[str]:
        """Many at once, all alike: PREFIX0, PREFIX1 and so on."""
        names: list[str] = []
        for start in range(0, count, 50):
            batch = range(start, min(start + 50, count))
            names += await asyncio.gather(*(self._create(f"{prefix}{number}", **like) for number in batch))
        for name in names:
            await self._api.wait("nodes", name, None, _is_welcomed, seconds=120)
        return names

    async def _create(
        self,
        name: str,
        *,
        gpus: int = 8,
        gpu_type: str | None = "h100",
        type_label: str = "GpuType",
        instance_type: str = "p5.48xlarge",
        zone: str = "zone-a",
        cpus: int = 192,
        memory: str = "2048Gi",
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
        external_ip: str | None = None,
        machine: str = "",
    ) -> str:
        """`gpu_type=None`: no type label, only its instance type says what it is. `machine`: AWS's name of it."""
        full = f"{name}{self._suffix}"
        marks = {
            "kubernetes.io/hostname": full,
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": instance_type,
            "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": zone.rsplit("-", 1)[0],
            **({type_label: gpu_type} if gpu_type else {}),
            **(labels or {}),
        }
        manifest: Object = {
            "metadata": {"name": full, "labels": marks, "annotations": {"kwok.x-k8s.io/node": self._mark}},
            "spec": {"taints": taints or [], **({"providerID": f"aws:///{zone}/{machine}"} if machine else {})},
            "status": self._status(full, gpus, cpus, memory, external_ip),
        }
        self.names.append(full)
        await self._api.create("nodes", manifest)
        return full

    def _status(self, name: str, gpus: int, cpus: int, memory: str, external_ip: str | None) -> Object:
        size = {"cpu": str(cpus), "memory": memory, "ephemeral-storage": "1Ti", "pods": "250"}
        if gpus:
            size["nvidia.com/gpu"] = str(gpus)
        number = len(self.names) + 1
        addresses = [
            {"type": "InternalIP", "address": f"10.20.{number // 250}.{number % 250 + 1}"},
            {"type": "InternalDNS", "address": "localhost"},  # where KWOK answers for logs and exec
            {"type": "Hostname", "address": name},
        ]
        if external_ip:
            addresses.append({"type": "ExternalIP", "address": external_ip})
        return {
            "capacity": size,
            "allocatable": size,
            "addresses": addresses,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kwok_port}},
            "conditions": [_ready_condition("True")],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "fake",
                "containerRuntimeVersion": "fake",
                "kernelVersion": "fake",
                "osImage": "fake",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kubeProxyVersion": "",
            },
        }

    async def remove(self, name: str) -> None:
        """The node object goes; its pods lose their node, and the pod garbage collector takes them later."""
        await self._api.delete("nodes", name)

    async def remove_all(self) -> None:
        """With the pods on them: nobody would end those."""
        ours = set(self.names)
        for pod in await self._api.list("pods"):
            if pod["spec"].get("nodeName") in ours:
                await self._api.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
        for name in self.names:
            await self._api.delete("nodes", name)
        self.names.clear()

    async def set_ready(self, name: str, ready: bool) -> None:
        """Not ready: its kubelet says so itself."""
        await self._set_condition(name, "True" if ready else "False")

    async def lose(self, name: str) -> None:
        """Its kubelet has fallen silent: nothing is known, and nothing on it will ever end properly. Written as the
        controller manager does it when a node's heartbeats stop: the pods are no longer called ready."""
        await self._set_condition(name, "Unknown")
        not_ready = {"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": _now()}]}}
        for pod in await self._api.list("pods", fields=f"spec.nodeName={name}"):
            pod_name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            await self._api.play(pod_name, namespace, "stuck")
            await self._api.patch("pods", pod_name, not_ready, namespace, subresource="status")

    async def cordon(self, name: str, cordoned: bool = True) -> None:
        await self._api.patch("nodes", name, {"spec": {"unschedulable": cordoned}})

    async def taint(self, name: str, key: str, effect: str = "NoSchedule", value: str = "") -> None:
        kept = await self._other_taints(name, key)
        taints = [*kept, {"key": key, "effect": effect, "value": value}]
        await self._api.patch("nodes", name, {"spec": {"taints": taints}})

    async def untaint(self, name: str, key: str) -> None:
        await self._api.patch("nodes", name, {"spec": {"taints": await self._other_taints(name, key)}})

    async def _other_taints(self, name: str, key: str) -> list[Object]:
        node = await self._api.get("nodes", name)
        return [taint for taint in node["spec"].get("taints", []) if taint["key"] != key]

    async def set_gpus(self, name: str, gpus: int) -> None:
        """What the device plugin calls healthy; the capacity stays."""
        await self._api.patch(
            "nodes", name, {"status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}, subresource="status"
        )

    async def _set_condition(self, name: str, status: str) -> None:
        await self._api.patch(
            "nodes", name, {"status": {"conditions": [_ready_condition(status)]}}, subresource="status"
        )


def _is_welcomed(node: Object) -> bool:
    """Every new node is tainted as not ready until the controller manager has looked at it once."""
    return all(taint["key"] != "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", []))


def _ready_condition(status: str) -> dict[str, Any]:
    reason, message = {
        "True": ("KubeletReady", "kubelet is posting ready status"),
        "False": ("KubeletNotReady", "container runtime network not ready"),
        "Unknown": ("NodeStatusUnknown", "Kubelet stopped posting node status."),
    }[status]
    now = _now()
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
