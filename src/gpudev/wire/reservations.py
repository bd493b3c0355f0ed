"""Reservations ("jobs") on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

_STRICT: dict[str, Any] = {"extra": "forbid"}


def _doc(text: str, **constraints: Any) -> dict[str, Any]:
    return {"description": text, **constraints}


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """What a user asks for. Unknown fields are refused."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    gpu_count: int = field(
        default=1, metadata=_doc("GPUs: 1, 2, 4, 8, 16, 24 or 32; 0 for a CPU type", ge=0, le=64, strict=True)
    )
    gpu_type: str | None = field(
        default=None, metadata=_doc("GPU type; without it, the only type that has nodes", max_length=50)
    )
    duration_hours: float | None = field(
        default=None, metadata=_doc("Hours, from when the dev server is ready (default 8, at most 24)", strict=True)
    )
    github_user: str | None = field(
        default=None, metadata=_doc("Whose published GitHub keys may log in", max_length=39)
    )
    ssh_public_keys: list[str] | None = field(
        default=None, metadata=_doc("Public keys that may log in, instead of GitHub's", max_length=50)
    )
    name: str | None = field(default=None, metadata=_doc("A name for people", max_length=63))
    image: str | None = field(default=None, metadata=_doc("Container image (Kubernetes)", max_length=255))
    disk_name: str | None = field(
        default=None,
        metadata=_doc("Disk for /home/dev; 'none': scratch; absent: your default disk if free", max_length=63),
    )
    max_wait_hours: float | None = field(
        default=None,
        metadata=_doc("Cancelled if it has not started after so many hours; absent: it waits on", strict=True),
    )
    environment: dict[str, str] | None = field(
        default=None,
        repr=False,
        metadata=_doc("Variables for every session there; at most 200, never shown again", max_length=200),
    )
    dotfiles: str | None = field(
        default=None,
        repr=False,
        metadata=_doc("Git repository that is cloned to ~/.dotfiles and installed", max_length=500),
    )
    startup_script: str | None = field(
        default=None,
        repr=False,
        metadata=_doc("Text of a program that is run there once it is ready", max_length=65_536),
    )


@dataclass(frozen=True, kw_only=True)
class PriorityRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    priority: int = field(metadata=_doc("Higher goes first; 0 is usual", ge=-100, le=100, strict=True))


@dataclass(frozen=True, kw_only=True)
class ExtendRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    extension_hours: float = field(metadata=_doc("Hours to add to the present end", strict=True))


@dataclass(kw_only=True)
class EtaView:
    """When a waiting reservation starts."""

    expected: datetime | None = field(metadata=_doc("As often before as after; null: nothing is known yet"))
    interval_from: datetime | None = field(metadata=_doc("It starts between here and `interval_to` …"))
    interval_to: datetime | None
    confidence: float = field(metadata=_doc("… in this share of all cases"))
    latest: datetime = field(metadata=_doc("The promise: it starts by then even if nobody leaves early"))
    margin_seconds: float = field(metadata=_doc("What `latest` allows for snapshot and teardown of the one before"))


@dataclass(kw_only=True)
class NodeShareView:
    rank: int
    node: str
    gpu_count: int
    gpu_indices: list[int]


@dataclass(frozen=True, kw_only=True)
class GpuUseView:
    """One GPU of a reservation, as last measured."""

    gpu: str = field(metadata=_doc("Its number on its node"))
    node: str
    at: datetime
    busy: float | None = field(metadata=_doc("Which share of the time it computed, from 0 to 1"))
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclass(kw_only=True)
class JobView:
    """One reservation. A job's id is its reservation's id. (Not frozen: that takes twice as long to make.)"""

    reservation_id: str
    job_id: str
    name: str | None
    user: str
    github_user: str | None
    status: str = field(metadata=_doc("pending, queued, preparing, active, expired, cancelled or failed"))
    version: int
    gpu_type: str
    gpu_count: int
    node_count: int
    duration_hours: float
    priority: int = field(default=0, metadata=_doc("Who has a higher one goes first; operators set it"))
    created_at: datetime
    launched_at: datetime | None
    expires_at: datetime | None
    cancelled_at: datetime | None
    reservation_ended: datetime | None
    released_at: datetime | None = field(metadata=_doc("When everything it had was confirmed gone"))
    queue_position: int | None = field(metadata=_doc("Place among those waiting for the type; 1 is next"))
    estimated_wait_minutes: int | None = field(metadata=_doc("The expected wait, rounded up"))
    estimated_start_at: datetime | None = field(metadata=_doc("Its start if everybody ahead stays to the planned end"))
    eta: EtaView | None = field(metadata=_doc("While it waits: when it starts, with a stated error"))
    wait_reason: str | None
    last_queue_update: datetime | None
    step: str | None = field(metadata=_doc("What is being done right now, in words"))
    failure_reason: str | None
    disk_name: str | None
    image: str | None
    pod_name: str | None
    namespace: str
    nodes: list[NodeShareView]
    node_ip: str | None
    node_port: int | None
    ssh_user: str | None
    ssh_command: str | None
    ssh_host_key: str | None = field(metadata=_doc("The dev server's public host key (known_hosts form, no host)"))
    warning: str | None = field(metadata=_doc("Something the owner should know now (expiry near, scratch home)"))
    wait_until: datetime | None = field(
        default=None, metadata=_doc("While it waits: when it is cancelled if it has not started (max_wait_hours)")
    )
    users: list[str] | None = field(
        default=None, metadata=_doc("Who else may log in, by GitHub name; told only of one that is asked for by its id")
    )
    jupyter: str | None = field(
        default=None, metadata=_doc("starting, ready or failed; null: off. Told only of one asked for by its id")
    )
    setup_outcome: str | None = field(
        default=None, metadata=_doc("What became of its owner's dotfiles and start-up script, once they have run")
    )
    gpus: list[GpuUseView] | None = field(
        default=None,
        metadata=_doc("How busy its GPUs are, where that is measured. Told only of one that is asked for by its id"),
    )


@dataclass(frozen=True, kw_only=True)
class JobList:
    jobs: list[JobView]
    next_cursor: str | None = field(metadata=_doc("Pass as `cursor` for the next page; null at the end"))


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """One line of a reservation's history; the data of a server-sent event of kind `event`."""

    event_id: int
    at: datetime
    kind: str
    status: str
    version: int
    message: str
