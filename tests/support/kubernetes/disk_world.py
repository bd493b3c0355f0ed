"""A cluster whose nodes are in two zones, as AWS's are, with a volume in one of them."""

import uuid
from typing import Any

from gpudev.adapters.kubernetes.objects.labels import reservation_selector
from gpudev.domain.ids import ReservationId, new_disk_id
from gpudev.ports.cluster import HomeVolume, ServerSpec
from support.kubernetes.api import Object
from support.kubernetes.cluster_world import KubernetesWorld

ZONE_LABEL = "topology.ebs.csi.aws.com/zone"
ON_AWS = {"disk_driver": "ebs.csi.aws.com", "disk_zone_label": ZONE_LABEL}


class DiskWorld(KubernetesWorld):
    """Its first two nodes and its volume are in zone-a, the third node is in zone-b."""

    volume: HomeVolume

    async def __aenter__(self) -> "DiskWorld":
        for name, zone in (("a", "zone-a"), ("b", "zone-a"), ("c", "zone-b")):
            full = await self.nodes.add(name, zone=zone, labels={ZONE_LABEL: zone})
            await self.api.wait("nodes", full, None, lambda node: not node["spec"].get("taints"))
            self.names.append(full)
        # Nobody's else: what stands for it is no namespace's, and may outlive a test for a moment.
        self.volume = HomeVolume(f"vol-{uuid.uuid4().hex[:17]}", 20, "zone-a")
        self.cluster = await self.open_cluster()
        return self

    def with_disk(self, volume: HomeVolume | None = None, **changes: Any) -> ServerSpec:
        return self.spec(disk_id=new_disk_id(), disk_name="data", volume=volume or self.volume, **changes)

    async def volumes_of(self, reservation_id: ReservationId) -> list[Object]:
        volumes = await self.api.list("persistentvolumes", selector=reservation_selector(reservation_id))
        claims = await self.api.list(
            "persistentvolumeclaims", self.namespace, selector=reservation_selector(reservation_id)
        )
        return volumes + claims

    async def both_bound(self, spec: ServerSpec) -> tuple[Object, Object]:
        name = f"{spec.pod_name}-home"
        persistent = await self.api.wait("persistentvolumes", name, None, is_bound)
        return persistent, await self.api.wait("persistentvolumeclaims", name, self.namespace, is_bound)


def is_bound(one: Object) -> bool:
    return bool(one.get("status", {}).get("phase") == "Bound")
