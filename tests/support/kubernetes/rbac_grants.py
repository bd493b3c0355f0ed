"""Service accounts with exactly the rights that a test grants them."""

from collections.abc import Sequence

from gpudev.adapters.kubernetes.client.rbac import PolicyRule
from support.kubernetes.api import KubeApi
from support.kubernetes.control_plane import ControlPlane

_RBAC = "rbac.authorization.k8s.io"


async def grant_rights(
    api: KubeApi, plane: ControlPlane, namespace: str, rights: Sequence[PolicyRule], everywhere: Sequence[PolicyRule]
) -> str:
    """The kubeconfig of an account with these rights."""
    token = await api.service_account_token("processor", namespace)
    subject = {"kind": "ServiceAccount", "name": "processor", "namespace": namespace}
    for kind, some, place in (("Role", rights, namespace), ("ClusterRole", everywhere, None)):
        role = {"metadata": {"name": f"{namespace}-processor"}, "rules": [right.to_manifest() for right in some]}
        reference = {"apiGroup": _RBAC, "kind": kind, "name": f"{namespace}-processor"}
        binding = {"metadata": role["metadata"], "roleRef": reference, "subjects": [subject]}
        await api.create(f"{kind.lower()}s", role, place)
        await api.create(f"{kind.lower()}bindings", binding, place)
    return str(plane.kubeconfig_with(token=token))


async def revoke_rights(api: KubeApi, namespace: str) -> None:
    for kind in ("clusterrolebindings", "clusterroles"):
        await api.delete(kind, f"{namespace}-processor")
