"""Hosts file of a gang: publishes the members' addresses to all of them.

It serves clusters whose DNS is missing or slow with new names. It runs in the background once every member has an
address, and again after a member was replaced. The addresses go into the gang's Secret. A changed annotation on the
pods makes their kubelets read the Secret immediately instead of within a minute.
"""

import asyncio
import hashlib
from collections.abc import Sequence

import structlog

from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.client.resource_kinds import POD, SECRET
from gpudev.adapters.kubernetes.objects import labels
from gpudev.adapters.kubernetes.objects.secret_files import HOSTS, encode_secret_value, format_hosts
from gpudev.domain.errors import GpuDevError
from gpudev.domain.ids import ReservationId, pod_name
from gpudev.keyed_tasks import KeyedTasks

log = structlog.get_logger(__name__)


class GangHostsPublisher:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._published: dict[ReservationId, frozenset[str]] = {}
        self._publishing = KeyedTasks[ReservationId, None]("hosts of")

    def publish_if_changed(self, parts: ServerParts) -> None:
        """Cheap, because every observation calls it."""
        rid = parts.reservation_id
        members = frozenset(pod.uid for pod in parts.pods)
        if self._published.get(rid) == members or rid in self._publishing or not _is_complete(parts):
            return
        self._publishing.start(rid, lambda: self._publish(rid, parts.pods, members))

    def forget_reservation(self, reservation_id: ReservationId) -> None:
        self._published.pop(reservation_id, None)

    async def close(self) -> None:
        await self._publishing.close()

    async def _publish(self, rid: ReservationId, pods: Sequence[PodRecord], members: frozenset[str]) -> None:
        """A failure is retried at a later observation."""
        try:
            addresses = await self._fetch_addresses(pods)
            if len(addresses) == len(pods):
                await self._write_hosts(pod_name(rid), pods, format_hosts(pod_name(rid), addresses))
                self._published[rid] = members
        except GpuDevError as error:
            log.info("gang_hosts.not_published", reservation_id=str(rid), error=str(error))

    async def _fetch_addresses(self, pods: Sequence[PodRecord]) -> dict[int, str]:
        found = await asyncio.gather(*(self._api.find_object(POD, pod.name) for pod in pods))
        return {
            pod.member.rank: manifest["status"]["podIP"]
            for pod, manifest in zip(pods, found, strict=True)
            if pod.member is not None and manifest is not None and manifest["status"].get("podIP")
        }

    async def _write_hosts(self, secret: str, pods: Sequence[PodRecord], lines: str) -> None:
        await self._api.patch(SECRET, secret, {"data": {HOSTS: encode_secret_value(lines)}})
        digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
        change = {"metadata": {"annotations": {labels.HOSTS_DIGEST: digest}}}
        await asyncio.gather(*(self._api.patch(POD, pod.name, change) for pod in pods))


def _is_complete(parts: ServerParts) -> bool:
    members = [pod.member for pod in parts.pods if pod.member is not None and not pod.is_deleting]
    return (
        len(members) > 1 and len(members) == members[0].members and all(member.phase == "Running" for member in members)
    )
