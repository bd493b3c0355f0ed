"""The Pod of one member of a dev server: pure. Where it runs was planned before; the scheduler is asked for exactly
that node, so that it still checks what only it knows (ports, volumes, taints) and binds nothing that does not fit."""

import math
import re
from dataclasses import dataclass
from typing import Any

from gpudev.adapters.kubernetes.objects import labels as names
from gpudev.adapters.kubernetes.objects.labels import gang_service_name, label_value, member_name
from gpudev.adapters.kubernetes.objects.network_policies import SSH_PORT
from gpudev.adapters.kubernetes.objects.secret_files import HOME, WORKSPACE, mounted_items, one_line
from gpudev.adapters.kubernetes.sizing import Room
from gpudev.domain.cluster import Share
from gpudev.ports.cluster import ServerSpec
from gpudev.settings import KubernetesSettings

CONTAINER = "dev"
BINARY = "/gpudev/bin/gpudev-devserver"
_BIN, _CONFIG = "/gpudev/bin", "/gpudev/config"
_INIT = {"cpu": "100m", "memory": "64Mi"}
_NOBODY = 65532
_LONGEST_ANNOTATION = 1024
_LEAVE_IT_THERE = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Whoever saves nodes by moving pods would end somebody's work: a dev server cannot be moved."""
_FAREWELL_S = 5
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
class Place:
    """What one member gets."""

    share: Share
    room: Room
    rest: tuple[tuple[str, str], ...] = ()
    """(resource, amount) of what comes with a whole node."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Claims that exist already. None: scratch that ends with the pod."""

    home_claim: str | None = None
    """Where people log in; the other members of a gang have scratch: only one pod can have a disk."""
    workspace_claim: str | None = None


def server_labels(spec: ServerSpec) -> dict[str, str]:
    """What everything made for a reservation carries."""
    return {
        names.MANAGED_BY: names.OURS,
        names.RESERVATION_ID: str(spec.reservation_id),
        names.USER: label_value(spec.username),
        names.GPU_TYPE: label_value(spec.gpu_type),
    }


def server_annotations(spec: ServerSpec, host_key: str) -> dict[str, str]:
    annotations = {names.USERNAME: readable(spec.username), names.HOST_KEY: host_key}
    if spec.name is not None:
        annotations[names.NAME] = readable(spec.name)
    return annotations


def pod(
    spec: ServerSpec, place: Place, settings: KubernetesSettings, storage: Storage, host_key: str
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
                **_LEAVE_IT_THERE,
                **server_annotations(spec, host_key),
                **({names.SETUP: "yes"} if (spec.dotfiles, spec.startup_script) != (None, None) else {}),
                names.PLANNED_NODE: share.node,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _grace(settings) + _FAREWELL_S,
            "affinity": _exactly(share.node),
            "tolerations": [{"key": key, "operator": "Exists"} for key in settings.tolerated_taints],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [_init_container(settings)],
            "containers": [_container(spec, place, settings)],
            "volumes": _volumes(spec, place, settings, storage),
            **_gang_names(spec, name, settings),
            **_optional(settings),
        },
    }


def _grace(settings: KubernetesSettings) -> int:
    return math.ceil(settings.termination_grace.total_seconds())


def image_of(spec: ServerSpec, settings: KubernetesSettings) -> str:
    return readable(spec.image or "") or settings.default_image


_PINNED = re.compile(r"@sha256:[0-9a-f]{64}$|:(?!latest$)[^/:@]+$")


def pull_policy(image: str, settings: KubernetesSettings) -> str:
    """A name that may mean another image tomorrow is asked for again every time."""
    if settings.image_pull_policy == "IfNotPresent" and not _PINNED.search(image):
        return "Always"
    return settings.image_pull_policy


def _exactly(node: str) -> dict[str, Any]:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _gang_names(spec: ServerSpec, name: str, settings: KubernetesSettings) -> dict[str, Any]:
    if len(spec.shares) == 1:
        return {}
    gang = gang_service_name(spec.pod_name)
    # The members' plain names are found as well, not only those with the gang's.
    search = f"{gang}.{settings.namespace}.svc.{settings.cluster_domain}"
    return {"hostname": name, "subdomain": gang, "dnsConfig": {"searches": [search]}}


def _optional(settings: KubernetesSettings) -> dict[str, Any]:
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
        "imagePullPolicy": pull_policy(settings.init_image, settings),
        "command": ["/gpudev-devserver", "install", "--to", _BIN],
        "resources": {"requests": _INIT, "limits": _INIT},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "bin", "mountPath": _BIN}],
    }


def _container(spec: ServerSpec, place: Place, settings: KubernetesSettings) -> dict[str, Any]:
    image = image_of(spec, settings)
    resources = {"cpu": place.room.cpu, "memory": place.room.memory}
    if spec.gpu_count:
        resources[settings.gpu_resource] = str(place.share.units)
        resources |= dict(place.rest)
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy(image, settings),
        "command": [BINARY, "serve", "--grace", f"{_grace(settings)}s"],
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
            {"name": "bin", "mountPath": _BIN, "readOnly": True},
            {"name": "config", "mountPath": _CONFIG, "readOnly": True},
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


def _volumes(spec: ServerSpec, place: Place, settings: KubernetesSettings, storage: Storage) -> list[dict[str, Any]]:
    secret = {"secretName": spec.pod_name, "defaultMode": 0o400, "items": mounted_items(spec, place.share.rank)}
    return [
        {"name": "bin", "emptyDir": {"sizeLimit": "64Mi"}},
        {"name": "config", "secret": secret},
        {"name": "home", **_claim_or(storage.home_claim if place.share.rank == 0 else None, {})},
        {"name": "workspace", **_claim_or(storage.workspace_claim, {"sizeLimit": settings.workspace_size})},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": place.room.shared_memory}},
    ]


def _claim_or(claim: str | None, scratch: dict[str, str]) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}} if claim is not None else {"emptyDir": scratch}


def readable(text: str) -> str:
    """Something for people to read, whatever it was."""
    return one_line(text).encode("utf-8", "replace").decode()[:_LONGEST_ANNOTATION]
