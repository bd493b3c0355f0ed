"""Takes down what was made for a reservation, whatever it is, by its label. It is gone when the API server lists none
of it any more; nothing is believed from a mirror.

What stands for a disk's volume goes too: first its claim, which the cluster keeps until the pod is gone, then itself,
which the cluster keeps until the claim is gone and the volume is detached. The volume stays. Claims of shared storage
carry no reservation's id: nothing here ever finds one.
"""

import asyncio
from collections.abc import Sequence

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.client.resource_kinds import (
    NETWORK_POLICY,
    PERSISTENT_VOLUME,
    POD,
    SECRET,
    SERVICE,
    VOLUME_CLAIM,
    Manifest,
    ResourceKind,
)
from gpudev.adapters.kubernetes.objects.labels import reservation_selector
from gpudev.domain.ids import ReservationId

_UNCACHED_KINDS = (SECRET, NETWORK_POLICY)
_CACHED_KINDS = (POD, SERVICE)
"""These are mirrored: whatever is left of a reservation must include one of them, or no look would ever show it.
They go last."""


async def delete_server_objects(api: KubernetesApi, reservation_id: ReservationId, *, has_disks: bool = False) -> bool:
    """True: everything is confirmed gone. False: it has been asked to go."""
    unseen, seen = (
        (*_UNCACHED_KINDS, VOLUME_CLAIM) if has_disks else _UNCACHED_KINDS,
        (*_CACHED_KINDS, PERSISTENT_VOLUME) if has_disks else _CACHED_KINDS,
    )
    found = await _list_server_objects(api, reservation_id, (*unseen, *seen))
    for kinds in (unseen, seen):
        await asyncio.gather(*(_delete_object(api, kind, one) for kind, one in found if kind in kinds))
    touched = {kind for kind, _ in found}
    return not touched or not await _list_server_objects(api, reservation_id, tuple(touched))


async def delete_server_pods(api: KubernetesApi, reservation_id: ReservationId) -> None:
    """Ask its pods to go. All else stays, and with it who the dev server is."""
    await asyncio.gather(
        *(_delete_object(api, kind, one) for kind, one in await _list_server_objects(api, reservation_id, (POD,)))
    )


async def _list_server_objects(
    api: KubernetesApi, reservation_id: ReservationId, kinds: Sequence[ResourceKind]
) -> list[tuple[ResourceKind, Manifest]]:
    listings = await asyncio.gather(
        *(api.list_objects(kind, selector=reservation_selector(reservation_id)) for kind in kinds)
    )
    return [(kind, one) for kind, (items, _) in zip(kinds, listings, strict=True) for one in items]


async def _delete_object(api: KubernetesApi, kind: ResourceKind, found: Manifest) -> None:
    metadata = found["metadata"]
    if "deletionTimestamp" not in metadata:
        await api.delete(kind, metadata["name"], uid=metadata["uid"])
