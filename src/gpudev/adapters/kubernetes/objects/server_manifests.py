"""Manifests of a dev server's objects besides its pods: Secret, Services, volumes, claims. Pure."""

import re
from typing import Any

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.adapters.kubernetes.objects import labels as names
from gpudev.adapters.kubernetes.objects.labels import (
    gang_service_name,
    home_volume_name,
    shared_claim_name,
    to_label_value,
)
from gpudev.adapters.kubernetes.objects.network_policies import SSH_PORT, build_gang_policy
from gpudev.adapters.kubernetes.objects.pod_manifest import server_annotations, server_labels, to_annotation_value
from gpudev.adapters.kubernetes.objects.secret_files import ServerKeys, build_secret_data
from gpudev.domain.errors import ClusterError
from gpudev.ports.cluster import HomeVolume, ServerSpec
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


# A disk's volume as /home/dev. The PersistentVolume names the cloud's volume, and the claim fits no other. Both are
# created for one reservation and deleted with it. Neither ever changes the volume itself.


_READ_WRITE_ONCE_POD_SINCE = (1, 29)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def choose_access_mode(server_version: str) -> str:
    """One pod at a time. Older API servers, and those without a readable version, get "one node at a time"."""
    match = _VERSION.match(server_version)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    return "ReadWriteOncePod" if version >= _READ_WRITE_ONCE_POD_SINCE else "ReadWriteOnce"


def build_persistent_volume(
    spec: ServerSpec, volume: HomeVolume, settings: KubernetesSettings, access: str
) -> dict[str, Any]:
    """Its reclaim policy is Retain: the files stay when this object is deleted."""
    if not settings.disk_driver:
        raise ClusterError(f"the disk {spec.disk_name!r} cannot be attached: no CSI driver is configured")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": home_volume_name(spec.pod_name),
            "labels": {**server_labels(spec), names.VOLUME_ID: to_label_value(volume.volume_id)},
            "annotations": _annotations(spec),
        },
        "spec": {
            "capacity": {"storage": _capacity(volume)},
            "accessModes": [access],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "volumeMode": "Filesystem",
            "csi": {
                "driver": settings.disk_driver,
                "volumeHandle": volume.volume_id,
                "fsType": settings.disk_fs_type,
            },
            # Reserved for this claim, although others may fit.
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": settings.namespace,
                "name": home_volume_name(spec.pod_name),
            },
            **_zone_affinity(volume, settings),
        },
    }


def build_home_claim(spec: ServerSpec, volume: HomeVolume, settings: KubernetesSettings, access: str) -> dict[str, Any]:
    name = home_volume_name(spec.pod_name)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": server_labels(spec),
            "annotations": _annotations(spec),
        },
        "spec": {
            "accessModes": [access],
            "storageClassName": "",  # not the cluster's default class, which would provision a volume
            "volumeMode": "Filesystem",
            "volumeName": name,
            "resources": {"requests": {"storage": _capacity(volume)}},
        },
    }


def volume_selector(volume: HomeVolume) -> str:
    """Selects our PersistentVolumes of this volume, of all reservations."""
    return f"{names.MANAGED_BY}={names.MANAGER},{names.VOLUME_ID}={to_label_value(volume.volume_id)}"


def find_volume_handle(persistent: Manifest) -> str | None:
    handle: str | None = persistent["spec"].get("csi", {}).get("volumeHandle")
    return handle


def find_capacity_patch(persistent: Manifest, volume: HomeVolume) -> dict[str, Any] | None:
    """Patch for a volume that has grown since; None: it has not."""
    if persistent["spec"].get("capacity", {}).get("storage") == _capacity(volume):
        return None
    return {"spec": {"capacity": {"storage": _capacity(volume)}}}


def _capacity(volume: HomeVolume) -> str:
    return f"{max(1, volume.size_gb)}Gi"


def _zone_affinity(volume: HomeVolume, settings: KubernetesSettings) -> dict[str, Any]:
    """Tells the scheduler where the volume can be attached, so that it tries no other zone."""
    if not volume.zone or not settings.disk_zone_label:
        return {}
    term = {"matchExpressions": [{"key": settings.disk_zone_label, "operator": "In", "values": [volume.zone]}]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}


def _annotations(spec: ServerSpec) -> dict[str, str]:
    annotations = {names.USERNAME: to_annotation_value(spec.username)}
    if spec.disk_name is not None:
        annotations[names.DISK_NAME] = to_annotation_value(spec.disk_name)
    return annotations
