"""RBAC rules that our services need in the cluster, and no others.

The chart grants exactly these; a test compares. The API needs none.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PolicyRule:
    group: str
    """API group; empty: the core group."""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def to_manifest(self) -> dict[str, Any]:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


CLUSTER_RULES = (PolicyRule("", ("nodes", "pods"), ("list", "watch")),)
"""Pods of all namespaces: GPUs that others use cannot be allocated."""

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
"""In the namespace of the dev servers. The installer may create the namespace itself (and with EFS the storage class);
the processor creates what is missing where it may."""

DISK_CLUSTER_RULES = (PolicyRule("", ("persistentvolumes",), (*_MANAGE_VERBS, "watch")),)
"""Cluster-wide, and only with disks: a PersistentVolume belongs to no namespace."""

DISK_NAMESPACE_RULES = (PolicyRule("", ("persistentvolumeclaims",), ("list", "delete")),)
"""In the namespace of the dev servers, for processor and `expire`, and only with disks. Claims of shared storage are
never deleted."""

TEARDOWN_NAMESPACE_RULES = (
    PolicyRule("", ("pods", "secrets"), ("list", "delete")),
    PolicyRule("", ("services",), ("list", "watch", "delete")),
    PolicyRule("", ("pods/exec",), ("get", "create")),
    PolicyRule("networking.k8s.io", ("networkpolicies",), ("list", "delete")),
)
"""In the namespace of the dev servers, for `expire`. It launches nothing, so it needs only this and CLUSTER_RULES."""

TEARDOWN_DISK_CLUSTER_RULES = (PolicyRule("", ("persistentvolumes",), ("list", "watch", "delete")),)
"""Cluster-wide, for `expire`, and only with disks."""

OBSERVE_CLUSTER_RULES = tuple(PolicyRule(rule.group, rule.resources, ("list",)) for rule in CLUSTER_RULES)
"""Cluster-wide, for commands that read the cluster's state once."""

NODE_MACHINES_CLUSTER_RULES = (PolicyRule("", ("nodes",), ("list",)),)
"""Cluster-wide, for operators' commands on machines, and only where a cloud provides the machines."""

NODE_MACHINES_NAMESPACE_RULES = (PolicyRule("", ("pods",), ("list", "delete")),)
"""In the namespace of the dev servers, for operators' commands on machines."""
