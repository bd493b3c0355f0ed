"""The rights our services need in the cluster, and no others: whoever installs them grants exactly these.

The API needs none, and who only looks has its own (`reading.RIGHTS`)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PolicyRule:
    group: str
    """An API group; empty: the core one."""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def to_manifest(self) -> dict[str, Any]:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


CLUSTER_RULES = (PolicyRule("", ("nodes", "pods"), ("list", "watch")),)
"""What others run counts too: their GPUs are not ours to give."""

_MANAGE_VERBS = ("get", "list", "create", "patch", "delete")
NAMESPACE_RULES = (
    PolicyRule("", ("pods", "secrets"), _MANAGE_VERBS),
    PolicyRule("", ("services",), (*_MANAGE_VERBS, "watch")),
    PolicyRule("", ("pods/log",), ("get",)),
    PolicyRule("", ("pods/exec",), ("get", "create")),
    PolicyRule("", ("persistentvolumeclaims",), ("get", "create")),
    PolicyRule("networking.k8s.io", ("networkpolicies",), _MANAGE_VERBS),
    PolicyRule("", ("namespaces",), ("get",)),
)
"""In the namespace of the dev servers. The namespace itself (and with EFS the storage class) may be made by whoever
installs; with a right to create it, the processor makes what is missing."""

DISK_CLUSTER_RULES = (PolicyRule("", ("persistentvolumes",), (*_MANAGE_VERBS, "watch")),)
"""Everywhere, and only where there are disks: what stands for a volume belongs to no namespace."""

DISK_NAMESPACE_RULES = (PolicyRule("", ("persistentvolumeclaims",), ("list", "delete")),)
"""In the namespace of the dev servers, for both, and only where there are disks. Claims of shared storage stay."""

TEARDOWN_NAMESPACE_RULES = (
    PolicyRule("", ("pods", "secrets"), ("list", "delete")),
    PolicyRule("", ("services",), ("list", "watch", "delete")),
    PolicyRule("", ("pods/exec",), ("get", "create")),
    PolicyRule("networking.k8s.io", ("networkpolicies",), ("list", "delete")),
)
"""In the namespace of the dev servers, for `expire`, which beside `EVERYWHERE` needs only this: it starts nobody."""

TEARDOWN_DISK_CLUSTER_RULES = (PolicyRule("", ("persistentvolumes",), ("list", "watch", "delete")),)
"""The same, everywhere, where there are disks."""
