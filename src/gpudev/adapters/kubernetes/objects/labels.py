"""Names, labels and annotations of our objects. Pure.

Every object of a reservation has the reservation's id as a label. A name alone proves nothing.

Texts that people chose (user name, GPU type) are turned into valid label values here. Their exact text goes into an
annotation.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from gpudev.domain.ids import ReservationId

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "gpu-dev"
RESERVATION_ID = "gpu-dev/reservation-id"
USER = "gpu-dev/user"
GPU_TYPE = "gpu-dev/gpu-type"
RANK = "gpu-dev/rank"
"""Which member of a gang a pod is. People log in to rank 0."""
MEMBERS = "gpu-dev/members"
"""How many pods the dev server has when it is complete."""

USERNAME = "gpu-dev/username"
"""Annotation: the exact user name."""
RESERVATION_NAME = "gpu-dev/name"
"""Annotation: the owner's name for the reservation."""
PLANNED_NODE = "gpu-dev/planned-node"
"""Annotation: the node that the planner chose for this member."""
HOST_KEY = "gpu-dev/host-key"
"""Annotation: the public part of the SSH host key, so that an observation needs no Secret."""
VOLUME_ID = "gpu-dev/volume-id"
"""Label: the cloud's volume of a PersistentVolume."""
DISK_NAME = "gpu-dev/disk-name"
"""Annotation: the owner's name for the disk."""
PERSONALIZATION = "gpu-dev/own-setup"
"""Annotation: the owner's dotfiles or start-up script run in the pod, and it reports their result."""
HOSTS_DIGEST = "gpu-dev/hosts"
"""Annotation: digest of the gang's hosts file."""

_MAX_LABEL_LENGTH = 63
_DIGEST_LENGTH = 16
_INVALID_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_INVALID_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def reservation_selector(reservation_id: ReservationId) -> str:
    """Selects all objects of one reservation."""
    return f"{MANAGED_BY}={MANAGER},{RESERVATION_ID}={reservation_id}"


def find_reservation_id(labels: Mapping[str, str] | None) -> ReservationId | None:
    """None: the object is not ours, or belongs to no reservation."""
    if not labels or labels.get(MANAGED_BY) != MANAGER:
        return None
    try:
        return ReservationId(UUID(labels.get(RESERVATION_ID, "")))
    except ValueError:
        return None


def belongs_to(manifest: Mapping[str, Any], reservation_id: ReservationId) -> bool:
    return find_reservation_id(manifest["metadata"].get("labels")) == reservation_id


def to_label_value(text: str) -> str:
    """A label value that people recognise. A digest keeps texts apart that would get the same value."""
    cleaned = _strip_punctuation(_INVALID_IN_LABELS.sub("_", text)[:_MAX_LABEL_LENGTH])
    if cleaned == text:
        return text
    digest = _digest(text)
    readable = _strip_punctuation(cleaned[: _MAX_LABEL_LENGTH - len(digest) - 1])
    return f"{readable}.{digest}" if readable else digest


def member_name(pod_name: str, rank: int) -> str:
    """People log in to rank 0, so it has the plain name."""
    return pod_name if rank == 0 else f"{pod_name}-{rank}"


def gang_service_name(pod_name: str) -> str:
    return f"{pod_name}-gang"


def home_volume_name(pod_name: str) -> str:
    """Name of both the claim and the PersistentVolume of a dev server's disk."""
    return f"{pod_name}-home"


def shared_claim_name(username: str) -> str:
    """Claim of a user's shared storage. It always has a digest, so that no user name can give another user's claim."""
    readable = _INVALID_IN_NAMES.sub("-", username.lower())[:24].strip("-")
    return "-".join(part for part in ("gpu-dev-shared", readable, _digest(username)) if part)


def _strip_punctuation(text: str) -> str:
    return text.strip("._-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
