"""Manifests of a dev server's objects besides its pods: Secret, Services, claims. Pure."""

from typing import Any

from gpudev.adapters.kubernetes.objects import labels as names
from gpudev.adapters.kubernetes.objects.labels import gang_service_name, shared_claim_name, to_label_value
from gpudev.adapters.kubernetes.objects.network_policies import SSH_PORT, build_gang_policy
from gpudev.adapters.kubernetes.objects.pod_manifest import server_annotations, server_labels
from gpudev.adapters.kubernetes.objects.secret_files import ServerKeys, build_secret_data
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings

EFS_STORAGE_CLASS = "gpu-dev-efs"


def build_secret(
    spec: ServerSpec, keys: ServerKeys, settings: KubernetesSettings, *, home_is_kept: bool
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(spec, spec.pod_name, settings, keys.host.public),
        "type": "Opaque",
        "data": build_secret_data(spec, keys, home_is_kept),
    }


def build_ssh_service(spec: ServerSpec, settings: KubernetesSettings, host_key: str) -> dict[str, Any]:
    """Service for SSH connections. The API server chooses the port on the nodes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, spec.pod_name, settings, host_key),
        "spec": {
            "type": "NodePort",
            "selector": {names.RESERVATION_ID: str(spec.reservation_id), names.RANK: "0"},
            # Nodes learn the route while the pod starts. Otherwise it could come a second after "ready" was published.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "ssh", "port": SSH_PORT, "targetPort": SSH_PORT, "protocol": "TCP"}],
        },
    }


def build_gang_objects(spec: ServerSpec, settings: KubernetesSettings, host_key: str) -> list[dict[str, Any]]:
    """Headless Service and NetworkPolicy, by which the members of a gang reach each other. None for a single member."""
    if len(spec.shares) == 1:
        return []
    name = gang_service_name(spec.pod_name)
    headless = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, name, settings, host_key),
        "spec": {
            "clusterIP": "None",
            "selector": {names.RESERVATION_ID: str(spec.reservation_id)},
            # Members resolve each other's names before all of them are ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "ssh", "port": SSH_PORT, "targetPort": SSH_PORT, "protocol": "TCP"}],
        },
    }
    return [headless, build_gang_policy(settings, name, server_labels(spec))]


def build_shared_claim(username: str, settings: KubernetesSettings) -> dict[str, Any] | None:
    """Claim of the user's shared storage, the same in all reservations and on all nodes of a gang. It has no
    reservation id, so no teardown finds it. None: shared storage is not configured."""
    storage_class = settings.shared_storage_class or (EFS_STORAGE_CLASS if settings.efs_file_system_id else "")
    if not storage_class:
        return None
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": shared_claim_name(username),
            "namespace": settings.namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.USER: to_label_value(username)},
            "annotations": {names.USERNAME: username.encode("utf-8", "replace").decode()},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": settings.workspace_size}},
        },
    }


def build_efs_storage_class(settings: KubernetesSettings) -> dict[str, Any] | None:
    """Creates one EFS access point per claim on the configured file system. The files outlive the claim. None: not
    configured, or another storage class is."""
    if not settings.efs_file_system_id or settings.shared_storage_class:
        return None
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": EFS_STORAGE_CLASS, "labels": {names.MANAGED_BY: names.MANAGER}},
        "provisioner": "efs.csi.aws.com",
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
        "parameters": {
            "provisioningMode": "efs-ap",
            "fileSystemId": settings.efs_file_system_id,
            "directoryPerms": "700",
            "uid": "1000",
            "gid": "1000",
            "basePath": "/gpu-dev",
        },
    }


def _metadata(spec: ServerSpec, name: str, settings: KubernetesSettings, host_key: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": settings.namespace,
        "labels": server_labels(spec),
        "annotations": server_annotations(spec, host_key),
    }
