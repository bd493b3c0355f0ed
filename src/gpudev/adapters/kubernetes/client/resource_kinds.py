"""The kinds of objects we deal with, and the addresses the API server gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Manifest = Mapping[str, Any]
"""An object as on the wire: plain JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Namespace None: across all of them."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
EVENT = Kind("v1", "Event", "events")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
NODE = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
STORAGE_CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)

_BY_NAME = {
    (kind.api_version, kind.name): kind
    for kind in (
        POD,
        SERVICE,
        SECRET,
        CONFIG_MAP,
        EVENT,
        CLAIM,
        VOLUME,
        NODE,
        NAMESPACE,
        SERVICE_ACCOUNT,
        NETWORK_POLICY,
        STORAGE_CLASS,
    )
}


def kind_of(manifest: Manifest) -> Kind:
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]
