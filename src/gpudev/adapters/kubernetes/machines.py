"""Which node runs on which of the cloud's machines, and taking pods away whose node no longer answers for them."""

from collections.abc import Sequence

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.client.rbac import PolicyRule
from gpudev.adapters.kubernetes.client.resource_kinds import NODE, POD
from gpudev.ports.node_groups import NodeMachine, NodePod

NODE_MACHINES_CLUSTER_RULES = (PolicyRule("", ("nodes",), ("list",)),)
"""Only where there is a cloud whose machines nodes are."""
NODE_MACHINES_NAMESPACE_RULES = (PolicyRule("", ("pods",), ("list", "delete")),)
"""All that operators' commands need."""


class KubernetesMachines:
    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def close(self) -> None:
        await self._api.close()

    async def nodes(self) -> Sequence[NodeMachine]:
        found, _ = await self._api.list_objects(NODE, all_namespaces=True)
        return [NodeMachine(one["metadata"]["name"], _machine_name(one["spec"].get("providerID", ""))) for one in found]

    async def pods_on(self, node: str) -> Sequence[NodePod]:
        there: list[NodePod] = []
        async for page in self._api.list_pages(
            POD, namespace=self._api.namespace, field_selector=f"spec.nodeName={node}"
        ):
            there += [NodePod(one["metadata"]["name"], one["metadata"]["uid"]) for one in page.items]
        return there

    async def remove_pod(self, pod: NodePod) -> None:
        await self._api.delete(POD, pod.name, uid=pod.uid, grace_seconds=0)


def _machine_name(provider_id: str) -> str:
    """aws:///us-west-1a/i-0123 and gce://project/zone/name: the machine comes last."""
    return provider_id.rpartition("/")[2]
