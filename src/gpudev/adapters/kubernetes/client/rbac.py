"""The rights our services need in the cluster, and no others: whoever installs them grants exactly these.

The API needs none, and who only looks has its own (`reading.RIGHTS`)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Right:
    group: str
    """An API group; empty: the core one."""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def rule(self) -> dict[str, Any]:
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


EVERYWHERE = (Right("", ("nodes", "pods"), ("list", "watch")),)
"""What others run counts too: their GPUs are not ours to give."""

_KEEPING = ("get", "list", "create", "patch", "delete")
AMONG_DEV_SERVERS = (
    Right("", ("pods", "secrets"), _KEEPING),
    Right("", ("services",), (*_KEEPING, "watch")),
    Right("", ("pods/log",), ("get",)),
    Right("", ("pods/exec",), ("get", "create")),
    Right("", ("persistentvolumeclaims",), ("get", "create")),
    Right("networking.k8s.io", ("networkpolicies",), _KEEPING),
    Right("", ("namespaces",), ("get",)),
)
"""In the namespace of the dev servers. The namespace itself (and with EFS the storage class) may be made by whoever
installs; with a right to create it, the processor makes what is missing."""

FOR_DISKS = (Right("", ("persistentvolumes",), (*_KEEPING, "watch")),)
"""Everywhere, and only where there are disks: what stands for a volume belongs to no namespace."""

CLAIMS_OF_DISKS = (Right("", ("persistentvolumeclaims",), ("list", "delete")),)
"""In the namespace of the dev servers, for both, and only where there are disks. Claims of shared storage stay."""

TO_END = (
    Right("", ("pods", "secrets"), ("list", "delete")),
    Right("", ("services",), ("list", "watch", "delete")),
    Right("", ("pods/exec",), ("get", "create")),
    Right("networking.k8s.io", ("networkpolicies",), ("list", "delete")),
)
"""In the namespace of the dev servers, for `expire`, which beside `EVERYWHERE` needs only this: it starts nobody."""

FOR_DISKS_TO_END = (Right("", ("persistentvolumes",), ("list", "watch", "delete")),)
"""The same, everywhere, where there are disks."""
