"""What our objects are called and how they are found again: pure. Every object made for a reservation carries its id
as a label; a name alone proves nothing.

Whatever a person chose (user name, GPU type) is made fit for a label here; the exact text goes into an annotation.
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
"""Which member of a gang a pod is; 0 is where people log in."""
MEMBERS = "gpu-dev/members"
"""How many pods the dev server has when it is whole."""

USERNAME = "gpu-dev/username"
"""Annotation: the exact user name."""
RESERVATION_NAME = "gpu-dev/name"
"""Annotation: what the owner calls the reservation."""
PLANNED_NODE = "gpu-dev/planned-node"
"""Annotation: where the plan put this member."""
HOST_KEY = "gpu-dev/host-key"
"""Annotation: the public half of the ssh host key, so that a look needs no secret."""
VOLUME_ID = "gpu-dev/volume-id"
"""Which of the cloud's volumes a PersistentVolume stands for."""
DISK_NAME = "gpu-dev/disk-name"
"""Annotation: what its owner calls the disk."""
PERSONALIZATION = "gpu-dev/own-setup"
"""Annotation: its owner brings something that is run in it, and that it can be asked about."""
HOSTS_DIGEST = "gpu-dev/hosts"
"""Annotation: changes when a gang's hosts file does."""

_MAX_LABEL_LENGTH = 63
_DIGEST_LENGTH = 16
_INVALID_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_INVALID_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def reservation_selector(reservation_id: ReservationId) -> str:
    """Everything made for one reservation."""
    return f"{MANAGED_BY}={MANAGER},{RESERVATION_ID}={reservation_id}"


def find_reservation_id(labels: Mapping[str, str] | None) -> ReservationId | None:
    """Whose it is; None: not ours, or not a reservation's."""
    if not labels or labels.get(MANAGED_BY) != MANAGER:
        return None
    try:
        return ReservationId(UUID(labels.get(RESERVATION_ID, "")))
    except ValueError:
        return None


def belongs_to(manifest: Mapping[str, Any], reservation_id: ReservationId) -> bool:
    return find_reservation_id(manifest["metadata"].get("labels")) == reservation_id


def to_label_value(text: str) -> str:
    """A label value that people recognise. Two texts that would look alike are kept apart by a digest."""
    cleaned = _strip_punctuation(_INVALID_IN_LABELS.sub("_", text)[:_MAX_LABEL_LENGTH])
    if cleaned == text:
        return text
    digest = _digest(text)
    readable = _strip_punctuation(cleaned[: _MAX_LABEL_LENGTH - len(digest) - 1])
    return f"{readable}.{digest}" if readable else digest


def member_name(pod_name: str, rank: int) -> str:
    """People log in to rank 0, so that one carries the plain name."""
    return pod_name if rank == 0 else f"{pod_name}-{rank}"


def gang_service_name(pod_name: str) -> str:
    return f"{pod_name}-gang"


def home_volume_name(pod_name: str) -> str:
    """Of the claim of a dev server's disk, and of what it claims."""
    return f"{pod_name}-home"


def shared_claim_name(username: str) -> str:
    """A user's own shared storage. The digest is always there: nobody can choose a name that becomes another's."""
    readable = _INVALID_IN_NAMES.sub("-", username.lower())[:24].strip("-")
    return "-".join(part for part in ("gpu-dev-shared", readable, _digest(username)) if part)


def _strip_punctuation(text: str) -> str:
    return text.strip("._-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
