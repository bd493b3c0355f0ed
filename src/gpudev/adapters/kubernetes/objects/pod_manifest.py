"""Manifest of the pod of one member of a dev server. Pure.

The planner has chosen the node. The pod requires exactly that node by affinity instead of being bound to it: the
scheduler still checks what only it knows (ports, volumes, taints), and binds nothing that does not fit.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from gpudev.adapters.kubernetes.objects import labels as names
from gpudev.adapters.kubernetes.objects.compute_resources import CpuMemory
from gpudev.adapters.kubernetes.objects.labels import gang_service_name, member_name, to_label_value
from gpudev.adapters.kubernetes.objects.network_policies import SSH_PORT
from gpudev.adapters.kubernetes.objects.secret_files import HOME, WORKSPACE, secret_mount_items, to_one_line
from gpudev.domain.cluster import NodeShare
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings

DEV_CONTAINER = "dev"
DEVSERVER_BINARY = "/gpudev/bin/gpudev-devserver"
_BIN_DIR, _CONFIG_DIR = "/gpudev/bin", "/gpudev/config"
_INIT_RESOURCES = {"cpu": "100m", "memory": "64Mi"}
_NONROOT_ID = 65532
_CLUSTER_DOMAIN = "cluster.local"
"""Kubernetes' default, and that of every managed cluster."""
_MAX_ANNOTATION_LENGTH = 1024
_DO_NOT_EVICT = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Autoscalers save nodes by moving pods. A dev server cannot be moved; moving it would end a person's work."""
_SHUTDOWN_MARGIN_S = 5
"""What our program itself needs after the grace period of the user's processes."""

CAPABILITIES = (
    "AUDIT_WRITE",  # sudo and login write audit records; older versions fail without it
    "CHOWN",  # packages install files of other owners
    "DAC_OVERRIDE",  # root reads and writes files of other owners
    "FOWNER",  # root changes their modes and times
    "FSETID",  # dpkg keeps setuid and setgid bits
    "KILL",  # `sudo kill`; our first process ends all others
    "NET_BIND_SERVICE",  # the SSH port
    "SETFCAP",  # packages such as ping have file capabilities
    "SETGID",  # sudo, su, our SSH server's switch to the user
    "SETUID",  # the same
    "SYS_CHROOT",  # a system sshd, debootstrap
)
"""All others are dropped. None of these has an effect outside of the container."""


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """Node, GPUs and resources of one member."""

    share: NodeShare
    resources: CpuMemory
    whole_node_resources: tuple[tuple[str, str], ...] = ()
    """(resource, amount) of resources that come with a whole node."""


@dataclass(frozen=True, slots=True)
class StorageClaims:
    """Names of existing claims. None: scratch space that ends with the pod."""

    home_claim: str | None = None
    """For rank 0, where people log in. Other members get scratch space, because only one pod can have a disk."""
    workspace_claim: str | None = None


def server_labels(spec: ServerSpec) -> dict[str, str]:
    """Labels of all objects of a reservation."""
    return {
        names.MANAGED_BY: names.MANAGER,
        names.RESERVATION_ID: str(spec.reservation_id),
        names.USER: to_label_value(spec.username),
        names.GPU_TYPE: to_label_value(spec.gpu_type),
    }


def server_annotations(spec: ServerSpec, host_key: str) -> dict[str, str]:
    annotations = {names.USERNAME: to_annotation_value(spec.username), names.HOST_KEY: host_key}
    if spec.name is not None:
        annotations[names.RESERVATION_NAME] = to_annotation_value(spec.name)
    return annotations


def build_pod(
    spec: ServerSpec, placement: MemberPlacement, settings: KubernetesSettings, storage: StorageClaims, host_key: str
) -> dict[str, Any]:
    share = placement.share
    name = member_name(spec.pod_name, share.rank)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {
                **server_labels(spec),
                names.RANK: str(share.rank),
                names.MEMBERS: str(len(spec.shares)),
            },
            "annotations": {
                **_DO_NOT_EVICT,
                **server_annotations(spec, host_key),
                **({names.PERSONALIZATION: "yes"} if (spec.dotfiles, spec.startup_script) != (None, None) else {}),
                names.PLANNED_NODE: share.node,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _grace_seconds(settings) + _SHUTDOWN_MARGIN_S,
            "affinity": _node_affinity(share.node),
            "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerated_taints],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [_init_container(settings)],
            "containers": [_dev_container(spec, placement, settings)],
            "volumes": _volumes(spec, placement, settings, storage),
            **_gang_hostnames(spec, name, settings),
            **_optional_fields(settings),
        },
    }


def _grace_seconds(settings: KubernetesSettings) -> int:
    return math.ceil(settings.termination_grace.total_seconds())


def choose_image(spec: ServerSpec, settings: KubernetesSettings) -> str:
    return to_annotation_value(spec.image or "") or settings.default_image


_PINNED_IMAGE = re.compile(r"@sha256:[0-9a-f]{64}$|:(?!latest$)[^/:@]+$")


def choose_pull_policy(image: str, settings: KubernetesSettings) -> str:
    """Always pull a tag that may name another image later (`latest`, or none)."""
    if settings.image_pull_policy == "IfNotPresent" and not _PINNED_IMAGE.search(image):
        return "Always"
    return settings.image_pull_policy


def _node_affinity(node: str) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _gang_hostnames(spec: ServerSpec, name: str, settings: KubernetesSettings) -> dict[str, Any]:
    if len(spec.shares) == 1:
        return {}
    gang = gang_service_name(spec.pod_name)
    # Members also resolve each other's plain names, not only those with the gang's subdomain.
    search = f"{gang}.{settings.namespace}.svc.{_CLUSTER_DOMAIN}"
    return {"hostname": name, "subdomain": gang, "dnsConfig": {"searches": [search]}}


def _optional_fields(settings: KubernetesSettings) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if settings.runtime_class:
        chosen["runtimeClassName"] = settings.runtime_class
    if settings.image_pull_secrets:
        chosen["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return chosen


def _init_container(settings: KubernetesSettings) -> dict[str, Any]:
    """Copies our program into the shared volume. It has no other permissions."""
    return {
        "name": "install",
        "image": settings.init_image,
        "imagePullPolicy": choose_pull_policy(settings.init_image, settings),
        "command": ["/gpudev-devserver", "install", "--to", _BIN_DIR],
        "resources": {"requests": _INIT_RESOURCES, "limits": _INIT_RESOURCES},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NONROOT_ID,
            "runAsGroup": _NONROOT_ID,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "bin", "mountPath": _BIN_DIR}],
    }


def _dev_container(spec: ServerSpec, placement: MemberPlacement, settings: KubernetesSettings) -> dict[str, Any]:
    image = choose_image(spec, settings)
    resources = {"cpu": placement.resources.cpu, "memory": placement.resources.memory}
    if spec.gpu_count:
        resources[settings.gpu_resource] = str(placement.share.units)
        resources |= dict(placement.whole_node_resources)
    return {
        "name": DEV_CONTAINER,
        "image": image,
        "imagePullPolicy": choose_pull_policy(image, settings),
        "command": [DEVSERVER_BINARY, "serve", "--grace", f"{_grace_seconds(settings)}s"],
        "workingDir": "/",
        "env": _container_environment(spec),
        # Requests equal limits (QoS class Guaranteed), so under memory pressure the node kills it among the last.
        "resources": {"requests": resources, "limits": resources},
        "ports": [{"name": "ssh", "containerPort": SSH_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "tcpSocket": {"port": SSH_PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 10,
        },
        "securityContext": {
            # Root, whatever user the image names: our program creates the user dev, and sudo must work.
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "privileged": False,
            "allowPrivilegeEscalation": True,
            "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
        },
        "volumeMounts": [
            {"name": "bin", "mountPath": _BIN_DIR, "readOnly": True},
            {"name": "config", "mountPath": _CONFIG_DIR, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "workspace", "mountPath": WORKSPACE},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def _container_environment(spec: ServerSpec) -> list[dict[str, str]]:
    """Contains no text that a person chose: Kubernetes would expand $(NAME) in it. That goes into the Secret."""
    if spec.gpu_count:
        return [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility,video,graphics"}]
    # NVIDIA's images request all GPUs by a variable, and the runtime grants them unless this overrides it.
    return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def _volumes(
    spec: ServerSpec, placement: MemberPlacement, settings: KubernetesSettings, storage: StorageClaims
) -> list[dict[str, Any]]:
    rank = placement.share.rank
    secret = {"secretName": spec.pod_name, "defaultMode": 0o400, "items": secret_mount_items(spec, rank)}
    return [
        {"name": "bin", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": "config", "secret": secret},
        {"name": "home", **_claim_or_scratch(storage.home_claim if rank == 0 else None, {})},
        {"name": "workspace", **_claim_or_scratch(storage.workspace_claim, {"sizeLimit": settings.workspace_size})},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": placement.resources.shm_size}},
    ]


def _claim_or_scratch(claim: str | None, scratch: dict[str, str]) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}} if claim is not None else {"emptyDir": scratch}


def to_annotation_value(text: str) -> str:
    """Make any text readable and valid for an annotation: one line, valid UTF-8, limited length."""
    return to_one_line(text).encode("utf-8", "replace").decode()[:_MAX_ANNOTATION_LENGTH]
