"""What is written down about a dev server, so that another control plane can find it again: values ↔ JSON."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import DiskId, ReservationId, UserId
from gpudev.domain.sessions.addons import JupyterSpec
from gpudev.ports.cluster import HomeVolume, ServerSpec


@dataclass(frozen=True, slots=True)
class ServerRecord:
    spec: ServerSpec
    ports: tuple[int, ...]
    """Where each member's SSH server listens, by rank."""
    master_port: int | None
    """Gangs: the port members agree on to find each other."""
    host: str | None = None
    """The address its SSH servers listen on; None: as the cluster that finds it would have them."""


@dataclass(frozen=True, slots=True)
class MemberExit:
    """How a member's first process ended."""

    reason: str
    watched: bool
    """Whether somebody watched when it did."""


@dataclass(frozen=True, slots=True)
class MemberPersonalization:
    """What a member says of the owner's own set-up."""

    words: str | None
    is_final: bool


class InvalidServerRecord(ValueError):
    """It was not written by us, or not by this version."""


def server_record_to_json(record: ServerRecord) -> str:
    spec = asdict(record.spec)
    spec["reservation_id"] = str(record.spec.reservation_id)
    spec["disk_id"] = str(record.spec.disk_id) if record.spec.disk_id else None
    spec["expires_at"] = record.spec.expires_at.isoformat() if record.spec.expires_at else None
    return json.dumps(
        {"spec": spec, "ports": record.ports, "master_port": record.master_port, "host": record.host}, indent=1
    )


def server_record_from_json(text: str) -> ServerRecord:
    try:
        data = json.loads(text)
        return ServerRecord(_spec_from_json(data["spec"]), tuple(data["ports"]), data["master_port"], data.get("host"))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidServerRecord(f"{type(error).__name__}: {error}") from error


def _spec_from_json(data: dict[str, Any]) -> ServerSpec:
    volume, jupyter = data.get("volume"), data.get("jupyter")
    return ServerSpec(
        **{
            **data,
            "reservation_id": ReservationId(UUID(data["reservation_id"])),
            "user_id": UserId(data["user_id"]),
            "disk_id": DiskId(UUID(data["disk_id"])) if data["disk_id"] else None,
            "expires_at": datetime.fromisoformat(data["expires_at"]) if data["expires_at"] else None,
            "shares": tuple(
                NodeShare(**{**share, "gpu_indices": tuple(share["gpu_indices"])}) for share in data["shares"]
            ),
            "ssh_public_keys": tuple(data["ssh_public_keys"]),
            "volume": None if volume is None else HomeVolume(**volume),
            "jupyter": None if jupyter is None else JupyterSpec(**jupyter),
        }
    )
