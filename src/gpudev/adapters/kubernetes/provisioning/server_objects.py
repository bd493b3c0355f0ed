"""Creation and deletion of the objects of one dev server.

An object is created if it is missing, and changed only if it belongs to this reservation. Nothing here waits for a pod
to run. It creates before it reads: a new reservation costs one request per object, and only a taken name is read.

A teardown deletes everything with the reservation's label. It is complete when the API server itself, not the cache,
lists nothing any more. The claim of a disk goes first; the cluster keeps it until the pod is gone. Then goes its
PersistentVolume; the cluster keeps that until the claim is gone and the volume is detached. The volume itself stays.
Claims of shared storage have no reservation id, so they are never found.
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
from gpudev.adapters.kubernetes.objects.labels import reservation_selector
from gpudev.adapters.kubernetes.objects.pod_manifest import MemberPlacement, StorageClaims, build_pod
from gpudev.adapters.kubernetes.objects.secret_files import HOST_KEY, HOSTS, MESH_KEY, ServerKeys, decode_secret_value
from gpudev.adapters.kubernetes.objects.server_manifests import (
    build_home_claim,
    build_persistent_volume,
    choose_access_mode,
    find_capacity_patch,
    find_volume_handle,
    volume_selector,
)
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
"""Phases in which a PersistentVolume can no longer be bound to a claim."""


@dataclass(frozen=True, slots=True)
class DesiredServer:
    spec: ServerSpec
    placements: Sequence[MemberPlacement]
    storage: StorageClaims
    failed_pods: frozenset[str] = frozenset()
    """Uids of pods that have not ended but will never work; they are replaced."""


@dataclass
class _CreatedObjects:
    """Objects that this call created, for the rollback."""

    objects: list[tuple[ResourceKind, Manifest]] = field(default_factory=list)


class ServerProvisioner:
    def __init__(
        self, api: KubernetesApi, settings: KubernetesSettings, on_created: Callable[[Manifest], None]
    ) -> None:
        """`on_created` gets every created object."""
        self._api = api
        self._on_created = on_created
        self._settings = settings
        self._ensured_claims: set[str] = set()
        self._access_mode: str | None = None

    async def ensure_objects(self, desired: DesiredServer) -> None:
        """All objects or none: after a rejection the objects created so far are deleted again. When the API server is
        unavailable they stay, and a retry completes them."""
        created = _CreatedObjects()
        try:
            await self._ensure_all(desired, created)
        except ClusterError:
            await asyncio.shield(self._roll_back(created))
            raise

    async def ensure_shared_claim(self, username: str) -> str | None:
        """Name of the claim of the user's shared storage; None: shared storage is not configured."""
        manifest = server_manifests.build_shared_claim(username, self._settings)
        if manifest is None:
            return None
        name: str = manifest["metadata"]["name"]
        if name not in self._ensured_claims:
            existing = await self._create_or_find(manifest)
            if existing is not None and existing["metadata"].get("annotations", {}).get(labels.USERNAME) != username:
                raise ClusterError(f"the claim {name} does not belong to {username} and was not changed")
            self._ensured_claims.add(name)
        return name

    async def _ensure_all(self, desired: DesiredServer, created: _CreatedObjects) -> None:
        spec, settings = desired.spec, self._settings
        if spec.volume is not None:
            # Before the pod: the scheduler backs off from a pod whose volume is missing.
            await self._ensure_home(desired, spec.volume, created)
        keys = await self._ensure_secret(desired, created)
        host_key = keys.host.public
        manifests = [
            server_manifests.build_ssh_service(spec, settings, host_key),
            *server_manifests.build_gang_objects(spec, settings, host_key),
        ]
        # Pods first: they take longest to start, and need the rest only when they run.
        await _gather_all(self._ensure_pod(desired, placement, host_key, created) for placement in desired.placements)
        await _gather_all(self._ensure_object(desired, manifest, created) for manifest in manifests)

    async def _ensure_home(self, desired: DesiredServer, volume: HomeVolume, created: _CreatedObjects) -> None:
        if self._access_mode is None:
            self._access_mode = choose_access_mode(await self._api.get_server_version())
        access = self._access_mode
        persistent = build_persistent_volume(desired.spec, volume, self._settings, access)
        await self._check_volume_is_free(volume, desired)
        await self._ensure_volume(desired, volume, persistent, created)
        await self._ensure_claim(desired, build_home_claim(desired.spec, volume, self._settings, access), created)

    async def _check_volume_is_free(self, volume: HomeVolume, desired: DesiredServer) -> None:
        """The cloud would not attach it twice, and the pod would only wait."""
        volumes, _ = await self._api.list_objects(PERSISTENT_VOLUME, selector=volume_selector(volume))
        for persistent in volumes:
            if not labels.belongs_to(persistent, desired.spec.reservation_id):
                name = persistent["metadata"]["name"]
                raise Unavailable(
                    f"volume {volume.volume_id} is still in use by another dev server (PersistentVolume {name})"
                )

    async def _ensure_volume(
        self, desired: DesiredServer, volume: HomeVolume, manifest: dict[str, Any], created: _CreatedObjects
    ) -> None:
        for _ in range(2):
            existing = await self._create_or_find(manifest, created)
            if existing is None:
                return
            self._check_owner(PERSISTENT_VOLUME, existing, desired)
            handle = find_volume_handle(existing)
            if handle != volume.volume_id:
                name = manifest["metadata"]["name"]
                raise ClusterError(f"the PersistentVolume {name} has another volume ({handle}) and was not changed")
            _check_not_deleting(PERSISTENT_VOLUME, existing)
            if _phase(existing) not in _UNUSABLE_VOLUME_PHASES:
                change = find_capacity_patch(existing, volume)
                if change is not None:
                    await self._api.patch(PERSISTENT_VOLUME, manifest["metadata"]["name"], change)
                return
            await self._remove(PERSISTENT_VOLUME, existing)  # its claim is gone, and it can never be bound again
        raise Unavailable(f"the PersistentVolume {manifest['metadata']['name']} is recreated after each deletion")

    async def _ensure_claim(self, desired: DesiredServer, manifest: dict[str, Any], created: _CreatedObjects) -> None:
        name = manifest["metadata"]["name"]
        existing = await self._create_or_find(manifest, created)
        if existing is not None:
            self._check_owner(VOLUME_CLAIM, existing, desired)
            _check_not_deleting(VOLUME_CLAIM, existing)
            if _phase(existing) == "Lost":  # its PersistentVolume is gone, and it can never be bound again
                await self._remove(VOLUME_CLAIM, existing)
                await self._create_or_find(manifest, created)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BIND_TIMEOUT_S):
                while True:
                    found = await self._api.find_object(VOLUME_CLAIM, name)
                    if found is not None and _phase(found) == "Bound":
                        return
                    await asyncio.sleep(_POLL_INTERVAL_S)
        raise Unavailable(f"the claim {name} is not bound to its volume yet")

    async def _ensure_secret(self, desired: DesiredServer, created: _CreatedObjects) -> ServerKeys:
        """Keys are generated once, so that a restarted dev server has the same host key."""
        spec = desired.spec
        is_gang = len(spec.shares) > 1
        new_keys = ServerKeys(generate_key_pair(), generate_key_pair() if is_gang else None)
        manifest = self._build_secret(desired, new_keys)
        existing = await self._create_or_find(manifest, created)
        if existing is None:
            return new_keys
        self._check_owner(SECRET, existing, desired)
        data = existing.get("data") or {}
        try:
            keys = ServerKeys(
                parse_key_pair(decode_secret_value(data[HOST_KEY])),
                parse_key_pair(decode_secret_value(data[MESH_KEY])) if is_gang else None,
            )
        except (KeyError, ValueError) as error:
            raise ClusterError(f"the keys in the Secret {spec.pod_name} cannot be read") from error
        manifest = self._build_secret(desired, keys)
        manifest["data"][HOSTS] = data.get(HOSTS, manifest["data"][HOSTS])
        if manifest["data"] != data:
            await self._api.apply(manifest)
        return keys

    def _build_secret(self, desired: DesiredServer, keys: ServerKeys) -> dict[str, Any]:
        return server_manifests.build_secret(
            desired.spec, keys, self._settings, home_is_kept=desired.storage.home_claim is not None
        )

    async def _ensure_object(self, desired: DesiredServer, manifest: dict[str, Any], created: _CreatedObjects) -> None:
        existing = await self._create_or_find(manifest, created)
        if existing is not None:
            self._check_owner(get_kind(manifest), existing, desired)
            await self._api.apply(manifest)

    async def _ensure_pod(
        self, desired: DesiredServer, placement: MemberPlacement, host_key: str, created: _CreatedObjects
    ) -> None:
        """A pod cannot be changed, only replaced."""
        manifest = build_pod(desired.spec, placement, self._settings, desired.storage, host_key)
        for _ in range(2):
            existing = await self._create_or_find(manifest, created)
            if existing is None:
                return
            self._check_owner(POD, existing, desired)
            if _is_usable(existing, desired.failed_pods) and _planned_node(existing) == placement.share.node:
                return
            await self._remove(POD, existing)
        raise Unavailable(f"the pod {manifest['metadata']['name']} is recreated after each deletion")

    async def _remove(self, kind: ResourceKind, manifest: Manifest) -> None:
        """A pod that has ended is deleted immediately; any other gets its grace period."""
        metadata = manifest["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        grace = 0 if kind is POD and _has_ended(manifest) else None
        await self._api.delete(kind, name, uid=uid, grace_seconds=grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMOVAL_TIMEOUT_S):
                while True:
                    found = await self._api.find_object(kind, name)
                    if found is None or found["metadata"]["uid"] != uid:
                        return
                    await asyncio.sleep(_POLL_INTERVAL_S)
        raise Unavailable(f"the earlier {kind.name} {name} has not been deleted yet")

    async def _create_or_find(
        self, manifest: dict[str, Any], created: _CreatedObjects | None = None
    ) -> Manifest | None:
        """None: it was created. Otherwise the existing object of that name."""
        kind, metadata = get_kind(manifest), manifest["metadata"]
        try:
            response = await self._api.create(manifest)
        except ApiRejected as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            self._on_created(response)
            if created is not None:
                created.objects.append((kind, response))
            return None
        existing = await self._api.find_object(kind, metadata["name"])
        if existing is None:
            raise Unavailable(f"the {kind.name} {metadata['name']} is being deleted")
        return existing

    def _check_owner(self, kind: ResourceKind, existing: Manifest, desired: DesiredServer) -> None:
        name = existing["metadata"]["name"]
        if not labels.belongs_to(existing, desired.spec.reservation_id):
            raise ClusterError(f"the {kind.name} {name} does not belong to this reservation and was not changed")

    async def _roll_back(self, created: _CreatedObjects) -> None:
        for kind, manifest in reversed(created.objects):
            metadata = manifest["metadata"]
            try:
                await self._api.delete(kind, metadata["name"], uid=metadata["uid"])
            except GpuDevError as error:  # it has the reservation's id, so the teardown finds it
                log.warning("rollback.failed", kind=kind.name, name=metadata["name"], error=str(error))


def _is_usable(manifest: Manifest, failed_pods: frozenset[str]) -> bool:
    metadata = manifest["metadata"]
    return not _has_ended(manifest) and "deletionTimestamp" not in metadata and metadata["uid"] not in failed_pods


def _has_ended(manifest: Manifest) -> bool:
    return _phase(manifest) in _ENDED_PHASES


def _check_not_deleting(kind: ResourceKind, existing: Manifest) -> None:
    if "deletionTimestamp" in existing["metadata"]:
        raise Unavailable(f"the {kind.name} {existing['metadata']['name']} is being deleted")


def _phase(manifest: Manifest) -> str | None:
    phase: str | None = (manifest.get("status") or {}).get("phase")
    return phase


def _planned_node(manifest: Manifest) -> str | None:
    node: str | None = (manifest["metadata"].get("annotations") or {}).get(labels.PLANNED_NODE)
    return node


async def _gather_all(steps: Iterable[Awaitable[None]]) -> None:
    """Run concurrently. All finish before an error is raised, so that all created objects are known. Rejections go
    before Unavailable."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    rejections = [failure for failure in failures if not isinstance(failure, Unavailable)]
    for failure in (*rejections, *failures):
        raise failure


# Teardown.


_UNCACHED_KINDS = (SECRET, NETWORK_POLICY)
_CACHED_KINDS = (POD, SERVICE)
"""Deleted last: if a teardown is interrupted, one of these must remain, because an observation shows no other kinds."""


async def delete_server_objects(api: KubernetesApi, reservation_id: ReservationId, *, has_disks: bool = False) -> bool:
    """True: everything is confirmed gone. False: deletion was requested."""
    uncached, cached = (
        (*_UNCACHED_KINDS, VOLUME_CLAIM) if has_disks else _UNCACHED_KINDS,
        (*_CACHED_KINDS, PERSISTENT_VOLUME) if has_disks else _CACHED_KINDS,
    )
    found = await _list_server_objects(api, reservation_id, (*uncached, *cached))
    for kinds in (uncached, cached):
        await asyncio.gather(*(_delete_object(api, kind, one) for kind, one in found if kind in kinds))
    found_kinds = {kind for kind, _ in found}
    return not found_kinds or not await _list_server_objects(api, reservation_id, tuple(found_kinds))


async def delete_server_pods(api: KubernetesApi, reservation_id: ReservationId) -> None:
    """Request deletion of its pods only. Its keys and addresses stay."""
    await asyncio.gather(
        *(_delete_object(api, kind, one) for kind, one in await _list_server_objects(api, reservation_id, (POD,)))
    )


async def _list_server_objects(
    api: KubernetesApi, reservation_id: ReservationId, kinds: Sequence[ResourceKind]
) -> list[tuple[ResourceKind, Manifest]]:
    listings = await asyncio.gather(
        *(api.list_objects(kind, selector=reservation_selector(reservation_id)) for kind in kinds)
    )
    return [(kind, item) for kind, (items, _) in zip(kinds, listings, strict=True) for item in items]


async def _delete_object(api: KubernetesApi, kind: ResourceKind, found: Manifest) -> None:
    metadata = found["metadata"]
    if "deletionTimestamp" not in metadata:
        await api.delete(kind, metadata["name"], uid=metadata["uid"])
