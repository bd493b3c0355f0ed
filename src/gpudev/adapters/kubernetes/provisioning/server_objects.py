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

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, Refused
from gpudev.adapters.kubernetes.client.resource_kinds import CLAIM, POD, SECRET, VOLUME, Kind, Manifest, kind_of
from gpudev.adapters.kubernetes.objects import labels, server_manifests
from gpudev.adapters.kubernetes.objects.home_volume import (
    access_mode,
    growth,
    handle_of,
    home_claim,
    persistent_volume,
    volumes_selector,
)
from gpudev.adapters.kubernetes.objects.pod_manifest import Place, Storage, pod
from gpudev.adapters.kubernetes.objects.secret_files import HOST_KEY, HOSTS, MESH_KEY, Keys, decode
from gpudev.adapters.kubernetes.ssh_keys import key_pair_of, new_key_pair
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.ports.cluster import HomeVolume, ServerSpec
from gpudev.settings import KubernetesSettings

log = structlog.get_logger(__name__)

_REMAINS_GONE_WITHIN_S = 5.0
_BOUND_WITHIN_S = 5.0
_LOOK_AGAIN_S = 0.05
_ENDED = ("Succeeded", "Failed")
_OF_NO_USE = ("Released", "Failed")
"""Phases of a PersistentVolume that takes no claim any more."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be there."""

    spec: ServerSpec
    places: Sequence[Place]
    storage: Storage
    condemned: frozenset[str] = frozenset()
    """Pods (by uid) that have not ended but never will work; they are made anew."""


@dataclass
class _Made:
    """What this call made, and would have to take back."""

    objects: list[tuple[Kind, Manifest]] = field(default_factory=list)


class Maker:
    def __init__(self, api: KubernetesApi, settings: KubernetesSettings, saw: Callable[[Manifest], None]) -> None:
        """`saw` is told of what was made."""
        self._api = api
        self._saw = saw
        self._settings = settings
        self._known_claims: set[str] = set()
        self._access_mode: str | None = None

    async def make(self, order: Order) -> None:
        """All of it or nothing: what was made before a refusal is taken back. Where the API server could not be asked,
        what is there stays; asking again completes it."""
        made = _Made()
        try:
            await self._make(order, made)
        except ClusterError:
            await asyncio.shield(self._take_back(made))
            raise

    async def ensure_shared_claim(self, username: str) -> str | None:
        """The name of the user's shared storage; None: there is none here."""
        manifest = server_manifests.shared_claim(username, self._settings)
        if manifest is None:
            return None
        name: str = manifest["metadata"]["name"]
        if name not in self._known_claims:
            taken = await self._create(manifest)
            if taken is not None and taken["metadata"].get("annotations", {}).get(labels.USERNAME) != username:
                raise ClusterError(f"the claim {name} is not {username}'s; it stays as it is")
            self._known_claims.add(name)
        return name

    async def _make(self, order: Order, made: _Made) -> None:
        spec, settings = order.spec, self._settings
        if spec.volume is not None:
            # Before the pod: one that the scheduler finds without its volume is put aside for a while.
            await self._ensure_home(order, spec.volume, made)
        keys = await self._ensure_secret(order, made)
        host_key = keys.host.public
        wanted = [
            server_manifests.ssh_service(spec, settings, host_key),
            *server_manifests.gang_objects(spec, settings, host_key),
        ]
        # Pods first: they have the longest way to go, and the rest is not needed before they run.
        await _all_of(self._ensure_pod(order, place, host_key, made) for place in order.places)
        await _all_of(self._ensure(order, manifest, made) for manifest in wanted)

    async def _ensure_home(self, order: Order, volume: HomeVolume, made: _Made) -> None:
        if self._access_mode is None:
            self._access_mode = access_mode(await self._api.server_version())
        access = self._access_mode
        persistent = persistent_volume(order.spec, volume, self._settings, access)
        await self._check_nobody_has(volume, order)
        await self._ensure_volume(order, volume, persistent, made)
        await self._ensure_claim(order, home_claim(order.spec, volume, self._settings, access), made)

    async def _check_nobody_has(self, volume: HomeVolume, order: Order) -> None:
        """The cloud would not attach it twice, and the pod would only hang."""
        there, _ = await self._api.list(VOLUME, selector=volumes_selector(volume))
        for one in there:
            if not labels.belongs_to(one, order.spec.reservation_id):
                name = one["metadata"]["name"]
                raise Unavailable(f"volume {volume.volume_id} is still another dev server's (PersistentVolume {name})")

    async def _ensure_volume(self, order: Order, volume: HomeVolume, manifest: dict[str, Any], made: _Made) -> None:
        for _ in range(2):
            taken = await self._create(manifest, made)
            if taken is None:
                return
            self._check_owner(VOLUME, taken, order)
            if handle_of(taken) != volume.volume_id:
                name = manifest["metadata"]["name"]
                raise ClusterError(f"the PersistentVolume {name} is of volume {handle_of(taken)}; it stays as it is")
            _check_stays(VOLUME, taken)
            if _phase(taken) not in _OF_NO_USE:
                change = growth(taken, volume)
                if change is not None:
                    await self._api.patch(VOLUME, manifest["metadata"]["name"], change)
                return
            await self._remove(VOLUME, taken)  # the claim it was for is gone, and it would never take another
        raise Unavailable(f"the PersistentVolume {manifest['metadata']['name']} keeps coming back")

    async def _ensure_claim(self, order: Order, manifest: dict[str, Any], made: _Made) -> None:
        name = manifest["metadata"]["name"]
        taken = await self._create(manifest, made)
        if taken is not None:
            self._check_owner(CLAIM, taken, order)
            _check_stays(CLAIM, taken)
            if _phase(taken) == "Lost":  # what it had is gone, and it would never take another
                await self._remove(CLAIM, taken)
                await self._create(manifest, made)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BOUND_WITHIN_S):
                while True:
                    found = await self._api.get(CLAIM, name)
                    if found is not None and _phase(found) == "Bound":
                        return
                    await asyncio.sleep(_LOOK_AGAIN_S)
        raise Unavailable(f"the claim {name} has not got its volume yet")

    async def _ensure_secret(self, order: Order, made: _Made) -> Keys:
        """The keys are made once: a dev server that is started again is the one people know."""
        spec = order.spec
        is_gang = len(spec.shares) > 1
        fresh = Keys(new_key_pair(), new_key_pair() if is_gang else None)
        wanted = self._secret(order, fresh)
        taken = await self._create(wanted, made)
        if taken is None:
            return fresh
        self._check_owner(SECRET, taken, order)
        data = taken.get("data") or {}
        try:
            keys = Keys(key_pair_of(decode(data[HOST_KEY])), key_pair_of(decode(data[MESH_KEY])) if is_gang else None)
        except (KeyError, ValueError) as error:
            raise ClusterError(f"the keys in the Secret {spec.pod_name} cannot be read") from error
        wanted = self._secret(order, keys)
        wanted["data"][HOSTS] = data.get(HOSTS, wanted["data"][HOSTS])
        if wanted["data"] != data:
            await self._api.apply(wanted)
        return keys

    def _secret(self, order: Order, keys: Keys) -> dict[str, Any]:
        return server_manifests.secret(
            order.spec, keys, self._settings, home_is_kept=order.storage.home_claim is not None
        )

    async def _ensure(self, order: Order, manifest: dict[str, Any], made: _Made) -> None:
        taken = await self._create(manifest, made)
        if taken is not None:
            self._check_owner(kind_of(manifest), taken, order)
            await self._api.apply(manifest)

    async def _ensure_pod(self, order: Order, place: Place, host_key: str, made: _Made) -> None:
        """A pod cannot be changed, only replaced."""
        manifest = pod(order.spec, place, self._settings, order.storage, host_key)
        for _ in range(2):
            taken = await self._create(manifest, made)
            if taken is None:
                return
            self._check_owner(POD, taken, order)
            if _lives(taken, order.condemned) and _planned_node(taken) == place.share.node:
                return
            await self._remove(POD, taken)
        raise Unavailable(f"the pod {manifest['metadata']['name']} keeps coming back")

    async def _remove(self, kind: Kind, remains: Manifest) -> None:
        """An ended pod holds nothing any more and goes at once; another one is given its time."""
        metadata = remains["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        grace = 0 if kind is POD and _has_ended(remains) else None
        await self._api.delete(kind, name, uid=uid, grace_seconds=grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMAINS_GONE_WITHIN_S):
                while True:
                    found = await self._api.get(kind, name)
                    if found is None or found["metadata"]["uid"] != uid:
                        return
                    await asyncio.sleep(_LOOK_AGAIN_S)
        raise Unavailable(f"what is left of the earlier {kind.name} {name} has not ended yet")

    async def _create(self, manifest: dict[str, Any], made: _Made | None = None) -> Manifest | None:
        """None: it was created. Otherwise: what has that name already."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        try:
            created = await self._api.create(manifest)
        except Refused as refused:
            if refused.reason != "AlreadyExists":
                raise
        else:
            self._saw(created)
            if made is not None:
                made.objects.append((kind, created))
            return None
        taken = await self._api.get(kind, metadata["name"])
        if taken is None:
            raise Unavailable(f"the {kind.name} {metadata['name']} is just being removed")
        return taken

    def _check_owner(self, kind: Kind, taken: Manifest, order: Order) -> None:
        if not labels.belongs_to(taken, order.spec.reservation_id):
            raise ClusterError(
                f"the {kind.name} {taken['metadata']['name']} belongs to somebody else; it stays as it is"
            )

    async def _take_back(self, made: _Made) -> None:
        for kind, manifest in reversed(made.objects):
            metadata = manifest["metadata"]
            try:
                await self._api.delete(kind, metadata["name"], uid=metadata["uid"])
            except GpuDevError as error:  # it carries the reservation's id: its teardown finds it
                log.warning("kubernetes.not_taken_back", kind=kind.name, name=metadata["name"], error=str(error))


def _lives(manifest: Manifest, condemned: frozenset[str]) -> bool:
    metadata = manifest["metadata"]
    return not _has_ended(manifest) and "deletionTimestamp" not in metadata and metadata["uid"] not in condemned


def _has_ended(manifest: Manifest) -> bool:
    return _phase(manifest) in _ENDED


def _check_stays(kind: Kind, taken: Manifest) -> None:
    if "deletionTimestamp" in taken["metadata"]:
        raise Unavailable(f"the {kind.name} {taken['metadata']['name']} is just being removed")


def _phase(manifest: Manifest) -> str | None:
    phase: str | None = (manifest.get("status") or {}).get("phase")
    return phase


def _planned_node(manifest: Manifest) -> str | None:
    node: str | None = (manifest["metadata"].get("annotations") or {}).get(labels.PLANNED_NODE)
    return node


async def _all_of(steps: Iterable[Awaitable[None]]) -> None:
    """At once. All of them come to an end before any failure is told, so that what was made is known."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    refusals = [failure for failure in failures if not isinstance(failure, Unavailable)]
    for failure in (*refusals, *failures):
        raise failure
