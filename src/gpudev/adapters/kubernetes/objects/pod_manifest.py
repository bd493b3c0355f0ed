"""The Pod of one member of a dev server: pure. Where it runs was planned before; the scheduler is asked for exactly
that node, so that it still checks what only it knows (ports, volumes, taints) and binds nothing that does not fit."""

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
_MAX_ANNOTATION_LENGTH = 1024
_DO_NOT_EVICT = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Whoever saves nodes by moving pods would end somebody's work: a dev server cannot be moved."""
_SHUTDOWN_MARGIN_S = 5
"""What our program itself needs after the people's processes have had their time."""

CAPABILITIES = (
    "AUDIT_WRITE",  # sudo and login write audit records, and older ones give up when they cannot
    "CHOWN",  # packages install files of other owners
    "DAC_OVERRIDE",  # root administers files that are not root's
    "FOWNER",  # the same for modes and times
    "FSETID",  # dpkg keeps setuid and setgid bits
    "KILL",  # `sudo kill`; our first process ends everybody's
    "NET_BIND_SERVICE",  # the ssh port
    "SETFCAP",  # packages such as ping carry file capabilities
    "SETGID",  # sudo, su, our ssh server becoming the user
    "SETUID",  # the same
    "SYS_CHROOT",  # a system sshd, debootstrap
)
"""All others are dropped. None of these reaches beyond the container."""


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """What one member gets."""

    share: NodeShare
    resources: CpuMemory
    whole_node_resources: tuple[tuple[str, str], ...] = ()
    """(resource, amount) of what comes with a whole node."""


@dataclass(frozen=True, slots=True)
class StorageClaims:
    """Claims that exist already. None: scratch that ends with the pod."""

    home_claim: str | None = None
    """Where people log in; the other members of a gang have scratch: only one pod can have a disk."""
    workspace_claim: str | None = None


def server_labels(spec: ServerSpec) -> dict[str, str]:
    """What everything made for a reservation carries."""
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
    spec: ServerSpec, place: MemberPlacement, settings: KubernetesSettings, storage: StorageClaims, host_key: str
) -> dict[str, Any]:
    share = place.share
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
            "containers": [_dev_container(spec, place, settings)],
            "volumes": _volumes(spec, place, settings, storage),
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
    """A name that may mean another image tomorrow is asked for again every time."""
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
    # The members' plain names are found as well, not only those with the gang's.
    search = f"{gang}.{settings.namespace}.svc.{settings.cluster_domain}"
    return {"hostname": name, "subdomain": gang, "dnsConfig": {"searches": [search]}}


def _optional_fields(settings: KubernetesSettings) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if settings.runtime_class:
        chosen["runtimeClassName"] = settings.runtime_class
    if settings.image_pull_secrets:
        chosen["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return chosen


def _init_container(settings: KubernetesSettings) -> dict[str, Any]:
    """Puts our program into the shared volume, and can do nothing else."""
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


def _dev_container(spec: ServerSpec, place: MemberPlacement, settings: KubernetesSettings) -> dict[str, Any]:
    image = choose_image(spec, settings)
    resources = {"cpu": place.resources.cpu, "memory": place.resources.memory}
    if spec.gpu_count:
        resources[settings.gpu_resource] = str(place.share.units)
        resources |= dict(place.whole_node_resources)
    return {
        "name": DEV_CONTAINER,
        "image": image,
        "imagePullPolicy": choose_pull_policy(image, settings),
        "command": [DEVSERVER_BINARY, "serve", "--grace", f"{_grace_seconds(settings)}s"],
        "workingDir": "/",
        "env": _container_environment(spec),
        # Requests and limits are the same, so it is among the last that a node in need takes memory from.
        "resources": {"requests": resources, "limits": resources},
        "ports": [{"name": "ssh", "containerPort": SSH_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "tcpSocket": {"port": SSH_PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 10,
        },
        "securityContext": {
            # Whatever user the image names: our program makes the user dev, and sudo has to work.
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
    """Nothing a person chose: the API server would look for $(NAME) in it. That goes through the Secret."""
    if spec.gpu_count:
        return [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility,video,graphics"}]
    # Images of NVIDIA's ask for all GPUs by a variable, which the runtime grants unless it is told otherwise.
    return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def _volumes(
    spec: ServerSpec, place: MemberPlacement, settings: KubernetesSettings, storage: StorageClaims
) -> list[dict[str, Any]]:
    secret = {"secretName": spec.pod_name, "defaultMode": 0o400, "items": secret_mount_items(spec, place.share.rank)}
    return [
        {"name": "bin", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": "config", "secret": secret},
        {"name": "home", **_claim_or_scratch(storage.home_claim if place.share.rank == 0 else None, {})},
        {"name": "workspace", **_claim_or_scratch(storage.workspace_claim, {"sizeLimit": settings.workspace_size})},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": place.resources.shm_size}},
    ]


def _claim_or_scratch(claim: str | None, scratch: dict[str, str]) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}} if claim is not None else {"emptyDir": scratch}


def to_annotation_value(text: str) -> str:
    """Something for people to read, whatever it was."""
    return to_one_line(text).encode("utf-8", "replace").decode()[:_MAX_ANNOTATION_LENGTH]
