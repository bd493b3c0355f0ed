"""Brings the objects of one dev server into being: each is created if it is not there, and touched only if it is this
reservation's. What was planned arrives as values; nothing waits here for a pod to run.

Creating comes before asking: a new reservation costs one request per object, and only a taken name is looked at.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpudev.adapters.key_pairs import generate_key_pair, parse_key_pair
from gpudev.adapters.kubernetes.client.kubernetes_api import ApiRejected, KubernetesApi
from gpudev.adapters.kubernetes.client.resource_kinds import (
    NETWORK_POLICY,
    PERSISTENT_VOLUME,
    POD,
    SECRET,
    SERVICE,
    VOLUME_CLAIM,
    Manifest,
    ResourceKind,
    get_kind,
)
from gpudev.adapters.kubernetes.objects import labels, server_manifests
from gpudev.adapters.kubernetes.objects.home_volume import (
    build_home_claim,
    build_persistent_volume,
    choose_access_mode,
    find_capacity_patch,
    find_volume_handle,
    volume_selector,
)
from gpudev.adapters.kubernetes.objects.labels import reservation_selector
from gpudev.adapters.kubernetes.objects.pod_manifest import MemberPlacement, StorageClaims, build_pod
from gpudev.adapters.kubernetes.objects.secret_files import HOST_KEY, HOSTS, MESH_KEY, ServerKeys, decode_secret_value
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import HomeVolume, ServerSpec
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)

_REMOVAL_TIMEOUT_S = 5.0
_BIND_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.05
_ENDED_PHASES = ("Succeeded", "Failed")
_UNUSABLE_VOLUME_PHASES = ("Released", "Failed")
"""Phases of a PersistentVolume that takes no claim any more."""


@dataclass(frozen=True, slots=True)
class DesiredServer:
    """What is to be there."""

    spec: ServerSpec
    placements: Sequence[MemberPlacement]
    storage: StorageClaims
    failed_pods: frozenset[str] = frozenset()
    """Pods (by uid) that have not ended but never will work; they are made anew."""


@dataclass
class _CreatedObjects:
    """What this call made, and would have to take back."""

    objects: list[tuple[ResourceKind, Manifest]] = field(default_factory=list)


class ServerProvisioner:
    def __init__(
        self, api: KubernetesApi, settings: KubernetesSettings, on_created: Callable[[Manifest], None]
    ) -> None:
        """`saw` is told of what was made."""
        self._api = api
        self._on_created = on_created
        self._settings = settings
        self._ensured_claims: set[str] = set()
        self._access_mode: str | None = None

    async def ensure_objects(self, order: DesiredServer) -> None:
        """All of it or nothing: what was made before a refusal is taken back. Where the API server could not be asked,
        what is there stays; asking again completes it."""
        made = _CreatedObjects()
        try:
            await self._ensure_all(order, made)
        except ClusterError:
            await asyncio.shield(self._roll_back(made))
            raise

    async def ensure_shared_claim(self, username: str) -> str | None:
        """The name of the user's shared storage; None: there is none here."""
        manifest = server_manifests.build_shared_claim(username, self._settings)
        if manifest is None:
            return None
        name: str = manifest["metadata"]["name"]
        if name not in self._ensured_claims:
            taken = await self._create_or_find(manifest)
            if taken is not None and taken["metadata"].get("annotations", {}).get(labels.USERNAME) != username:
                raise ClusterError(f"the claim {name} is not {username}'s; it stays as it is")
            self._ensured_claims.add(name)
        return name

    async def _ensure_all(self, order: DesiredServer, made: _CreatedObjects) -> None:
        spec, settings = order.spec, self._settings
        if spec.volume is not None:
            # Before the pod: one that the scheduler finds without its volume is put aside for a while.
            await self._ensure_home(order, spec.volume, made)
        keys = await self._ensure_secret(order, made)
        host_key = keys.host.public
        wanted = [
            server_manifests.build_ssh_service(spec, settings, host_key),
            *server_manifests.build_gang_objects(spec, settings, host_key),
        ]
        # Pods first: they have the longest way to go, and the rest is not needed before they run.
        await _gather_all(self._ensure_pod(order, place, host_key, made) for place in order.placements)
        await _gather_all(self._ensure_object(order, manifest, made) for manifest in wanted)

    async def _ensure_home(self, order: DesiredServer, volume: HomeVolume, made: _CreatedObjects) -> None:
        if self._access_mode is None:
            self._access_mode = choose_access_mode(await self._api.get_server_version())
        access = self._access_mode
        persistent = build_persistent_volume(order.spec, volume, self._settings, access)
        await self._check_volume_is_free(volume, order)
        await self._ensure_volume(order, volume, persistent, made)
        await self._ensure_claim(order, build_home_claim(order.spec, volume, self._settings, access), made)

    async def _check_volume_is_free(self, volume: HomeVolume, order: DesiredServer) -> None:
        """The cloud would not attach it twice, and the pod would only hang."""
        there, _ = await self._api.list_objects(PERSISTENT_VOLUME, selector=volume_selector(volume))
        for one in there:
            if not labels.belongs_to(one, order.spec.reservation_id):
                name = one["metadata"]["name"]
                raise Unavailable(f"volume {volume.volume_id} is still another dev server's (PersistentVolume {name})")

    async def _ensure_volume(
        self, order: DesiredServer, volume: HomeVolume, manifest: dict[str, Any], made: _CreatedObjects
    ) -> None:
        for _ in range(2):
            taken = await self._create_or_find(manifest, made)
            if taken is None:
                return
            self._check_owner(PERSISTENT_VOLUME, taken, order)
            if find_volume_handle(taken) != volume.volume_id:
                name = manifest["metadata"]["name"]
                raise ClusterError(
                    f"the PersistentVolume {name} is of volume {find_volume_handle(taken)}; it stays as it is"
                )
            _check_not_deleting(PERSISTENT_VOLUME, taken)
            if _phase(taken) not in _UNUSABLE_VOLUME_PHASES:
                change = find_capacity_patch(taken, volume)
                if change is not None:
                    await self._api.patch(PERSISTENT_VOLUME, manifest["metadata"]["name"], change)
                return
            await self._remove(
                PERSISTENT_VOLUME, taken
            )  # the claim it was for is gone, and it would never take another
        raise Unavailable(f"the PersistentVolume {manifest['metadata']['name']} keeps coming back")

    async def _ensure_claim(self, order: DesiredServer, manifest: dict[str, Any], made: _CreatedObjects) -> None:
        name = manifest["metadata"]["name"]
        taken = await self._create_or_find(manifest, made)
        if taken is not None:
            self._check_owner(VOLUME_CLAIM, taken, order)
            _check_not_deleting(VOLUME_CLAIM, taken)
            if _phase(taken) == "Lost":  # what it had is gone, and it would never take another
                await self._remove(VOLUME_CLAIM, taken)
                await self._create_or_find(manifest, made)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BIND_TIMEOUT_S):
                while True:
                    found = await self._api.find_object(VOLUME_CLAIM, name)
                    if found is not None and _phase(found) == "Bound":
                        return
                    await asyncio.sleep(_POLL_INTERVAL_S)
        raise Unavailable(f"the claim {name} has not got its volume yet")

    async def _ensure_secret(self, order: DesiredServer, made: _CreatedObjects) -> ServerKeys:
        """The keys are made once: a dev server that is started again is the one people know."""
        spec = order.spec
        is_gang = len(spec.shares) > 1
        fresh = ServerKeys(generate_key_pair(), generate_key_pair() if is_gang else None)
        wanted = self._build_secret(order, fresh)
        taken = await self._create_or_find(wanted, made)
        if taken is None:
            return fresh
        self._check_owner(SECRET, taken, order)
        data = taken.get("data") or {}
        try:
            keys = ServerKeys(
                parse_key_pair(decode_secret_value(data[HOST_KEY])),
                parse_key_pair(decode_secret_value(data[MESH_KEY])) if is_gang else None,
            )
        except (KeyError, ValueError) as error:
            raise ClusterError(f"the keys in the Secret {spec.pod_name} cannot be read") from error
        wanted = self._build_secret(order, keys)
        wanted["data"][HOSTS] = data.get(HOSTS, wanted["data"][HOSTS])
        if wanted["data"] != data:
            await self._api.apply(wanted)
        return keys

    def _build_secret(self, order: DesiredServer, keys: ServerKeys) -> dict[str, Any]:
        return server_manifests.build_secret(
            order.spec, keys, self._settings, home_is_kept=order.storage.home_claim is not None
        )

    async def _ensure_object(self, order: DesiredServer, manifest: dict[str, Any], made: _CreatedObjects) -> None:
        taken = await self._create_or_find(manifest, made)
        if taken is not None:
            self._check_owner(get_kind(manifest), taken, order)
            await self._api.apply(manifest)

    async def _ensure_pod(
        self, order: DesiredServer, place: MemberPlacement, host_key: str, made: _CreatedObjects
    ) -> None:
        """A pod cannot be changed, only replaced."""
        manifest = build_pod(order.spec, place, self._settings, order.storage, host_key)
        for _ in range(2):
            taken = await self._create_or_find(manifest, made)
            if taken is None:
                return
            self._check_owner(POD, taken, order)
            if _is_usable(taken, order.failed_pods) and _planned_node(taken) == place.share.node:
                return
            await self._remove(POD, taken)
        raise Unavailable(f"the pod {manifest['metadata']['name']} keeps coming back")

    async def _remove(self, kind: ResourceKind, remains: Manifest) -> None:
        """An ended pod holds nothing any more and goes at once; another one is given its time."""
        metadata = remains["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        grace = 0 if kind is POD and _has_ended(remains) else None
        await self._api.delete(kind, name, uid=uid, grace_seconds=grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMOVAL_TIMEOUT_S):
                while True:
                    found = await self._api.find_object(kind, name)
                    if found is None or found["metadata"]["uid"] != uid:
                        return
                    await asyncio.sleep(_POLL_INTERVAL_S)
        raise Unavailable(f"what is left of the earlier {kind.name} {name} has not ended yet")

    async def _create_or_find(self, manifest: dict[str, Any], made: _CreatedObjects | None = None) -> Manifest | None:
        """None: it was created. Otherwise: what has that name already."""
        kind, metadata = get_kind(manifest), manifest["metadata"]
        try:
            created = await self._api.create(manifest)
        except ApiRejected as refused:
            if refused.reason != "AlreadyExists":
                raise
        else:
            self._on_created(created)
            if made is not None:
                made.objects.append((kind, created))
            return None
        taken = await self._api.find_object(kind, metadata["name"])
        if taken is None:
            raise Unavailable(f"the {kind.name} {metadata['name']} is just being removed")
        return taken

    def _check_owner(self, kind: ResourceKind, taken: Manifest, order: DesiredServer) -> None:
        if not labels.belongs_to(taken, order.spec.reservation_id):
            raise ClusterError(
                f"the {kind.name} {taken['metadata']['name']} belongs to somebody else; it stays as it is"
            )

    async def _roll_back(self, made: _CreatedObjects) -> None:
        for kind, manifest in reversed(made.objects):
            metadata = manifest["metadata"]
            try:
                await self._api.delete(kind, metadata["name"], uid=metadata["uid"])
            except GpuDevError as error:  # it carries the reservation's id: its teardown finds it
                log.warning("kubernetes.not_taken_back", kind=kind.name, name=metadata["name"], error=str(error))


def _is_usable(manifest: Manifest, condemned: frozenset[str]) -> bool:
    metadata = manifest["metadata"]
    return not _has_ended(manifest) and "deletionTimestamp" not in metadata and metadata["uid"] not in condemned


def _has_ended(manifest: Manifest) -> bool:
    return _phase(manifest) in _ENDED_PHASES


def _check_not_deleting(kind: ResourceKind, taken: Manifest) -> None:
    if "deletionTimestamp" in taken["metadata"]:
        raise Unavailable(f"the {kind.name} {taken['metadata']['name']} is just being removed")


def _phase(manifest: Manifest) -> str | None:
    phase: str | None = (manifest.get("status") or {}).get("phase")
    return phase


def _planned_node(manifest: Manifest) -> str | None:
    node: str | None = (manifest["metadata"].get("annotations") or {}).get(labels.PLANNED_NODE)
    return node


async def _gather_all(steps: Iterable[Awaitable[None]]) -> None:
    """At once. All of them come to an end before any failure is told, so that what was made is known."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    refusals = [failure for failure in failures if not isinstance(failure, Unavailable)]
    for failure in (*refusals, *failures):
        raise failure


# Takes down what was made for a reservation, whatever it is, by its label. It is gone when the API server lists none
# of it any more; nothing is believed from a mirror.
#
# What stands for a disk's volume goes too: first its claim, which the cluster keeps until the pod is gone, then itself,
# which the cluster keeps until the claim is gone and the volume is detached. The volume stays. Claims of shared storage
# carry no reservation's id: nothing here ever finds one.


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
