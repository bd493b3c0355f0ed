"""Kinds of Kubernetes objects that we use, and their paths on the API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]
"""An object as plain JSON."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    api_version: str
    name: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Namespace None: all namespaces."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        scope = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{name}" if name else "")


POD = ResourceKind("v1", "Pod", "pods")
SERVICE = ResourceKind("v1", "Service", "services")
SECRET = ResourceKind("v1", "Secret", "secrets")
CONFIG_MAP = ResourceKind("v1", "ConfigMap", "configmaps")
VOLUME_CLAIM = ResourceKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PERSISTENT_VOLUME = ResourceKind("v1", "PersistentVolume", "persistentvolumes", is_namespaced=False)
NODE = ResourceKind("v1", "Node", "nodes", is_namespaced=False)
NAMESPACE = ResourceKind("v1", "Namespace", "namespaces", is_namespaced=False)
NETWORK_POLICY = ResourceKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
STORAGE_CLASS = ResourceKind("storage.k8s.io/v1", "StorageClass", "storageclasses", is_namespaced=False)

_BY_NAME = {
    (kind.api_version, kind.name): kind
    for kind in (
        POD,
        SERVICE,
        SECRET,
        CONFIG_MAP,
        VOLUME_CLAIM,
        PERSISTENT_VOLUME,
        NODE,
        NAMESPACE,
        NETWORK_POLICY,
        STORAGE_CLASS,
    )
}


def get_kind(manifest: Manifest) -> ResourceKind:
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]
