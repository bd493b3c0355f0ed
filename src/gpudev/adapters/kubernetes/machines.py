"""Which node runs on which of the cloud's machines, and taking pods away whose node no longer answers for them."""

from collections.abc import Sequence

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.client.rbac import Right
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD
from gpudev.ports.node_groups import NodeMachine, PodThere

EVERYWHERE = (Right("", ("nodes",), ("list",)),)
"""Only where there is a cloud whose machines nodes are."""
AMONG_DEV_SERVERS = (Right("", ("pods",), ("list", "delete")),)
"""All that operators' commands need."""


class KubernetesMachines:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def close(self) -> None:
        await self._api.close()

    async def nodes(self) -> Sequence[NodeMachine]:
        found, _ = await self._api.list(NODE, everywhere=True)
        return [NodeMachine(one["metadata"]["name"], _machine(one["spec"].get("providerID", ""))) for one in found]

    async def pods_on(self, node: str) -> Sequence[PodThere]:
        there: list[PodThere] = []
        async for page in self._api.pages(POD, namespace=self._api.namespace, fields=f"spec.nodeName={node}"):
            there += [PodThere(one["metadata"]["name"], one["metadata"]["uid"]) for one in page.items]
        return there

    async def remove_pod(self, pod: PodThere) -> None:
        await self._api.delete(POD, pod.name, uid=pod.uid, grace_seconds=0)


def _machine(provider_id: str) -> str:
    """aws:///us-west-1a/i-0123 and gce://project/zone/name: the machine comes last."""
    return provider_id.rpartition("/")[2]
