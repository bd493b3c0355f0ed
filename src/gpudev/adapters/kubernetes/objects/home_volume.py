"""Manifests that mount a disk's volume as /home/dev: PersistentVolume and claim. Pure.

The PersistentVolume names the cloud's volume, and the claim fits no other. Both are created for one reservation and
deleted with it. Neither ever changes the volume itself.
"""

import re
from typing import Any

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest
from gpudev.adapters.kubernetes.objects import labels as names
from gpudev.adapters.kubernetes.objects.labels import home_volume_name, to_label_value
from gpudev.adapters.kubernetes.objects.pod_manifest import server_labels, to_annotation_value
from gpudev.domain.errors import ClusterError
from gpudev.ports.cluster import HomeVolume, ServerSpec
from gpudev.settings import KubernetesSettings

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
