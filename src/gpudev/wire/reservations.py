"""Reservations ("jobs") on the wire."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

_STRICT: dict[str, Any] = {"extra": "forbid"}


def _doc(text: str, **constraints: Any) -> dict[str, Any]:
    return {"description": text, **constraints}


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """A request for a reservation. Unknown fields are rejected."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    gpu_count: int = field(
        default=1, metadata=_doc("GPUs: 1, 2, 4, 8, 16, 24 or 32; 0 for a CPU type", ge=0, strict=True)
    )
    gpu_type: str | None = field(
        default=None, metadata=_doc("GPU type; without it, the only type that has nodes", max_length=50)
    )
    duration_hours: float | None = field(
        default=None, metadata=_doc("Hours, from when the dev server is ready (default 8, at most 24)", strict=True)
    )
    github_user: str | None = field(
        default=None, metadata=_doc("GitHub user whose public keys may log in", max_length=39)
    )
    ssh_public_keys: list[str] | None = field(
        default=None, metadata=_doc("Public keys that may log in, instead of GitHub's", max_length=50)
    )
    name: str | None = field(default=None, metadata=_doc("A display name", max_length=63))
    image: str | None = field(default=None, metadata=_doc("Container image (Kubernetes)", max_length=255))
    disk_name: str | None = field(
        default=None,
        metadata=_doc(
            "Disk for /home/dev; 'none': scratch; absent: your default disk, unless another live reservation has it",
            max_length=63,
        ),
    )
    max_wait_hours: float | None = field(
        default=None,
        metadata=_doc("Cancelled if not started after this many hours; absent: no limit", strict=True),
    )
    environment: dict[str, str] | None = field(
        default=None,
        repr=False,
        metadata=_doc("Variables for every session there; at most 200, never shown again", max_length=200),
    )
    dotfiles: str | None = field(
        default=None,
        repr=False,
        metadata=_doc("Git repository, cloned to ~/.dotfiles and installed", max_length=500),
    )
    startup_script: str | None = field(
        default=None,
        repr=False,
        metadata=_doc("Text of a start-up script, run once the dev server is ready", max_length=65_536),
    )
    command: str | None = field(
        default=None,
        repr=False,
        metadata=_doc(
            "The command that the client will run there, for lists; the server does not run it", max_length=1000
        ),
    )


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """Optional. A client that ran a command reports how it ended."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    exit_code: int | None = field(
        default=None,
        metadata=_doc("Exit code of its command; absent: cancelled by a person", ge=0, le=255, strict=True),
    )


@dataclass(frozen=True, kw_only=True)
class PriorityRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    priority: int = field(metadata=_doc("Higher goes first; 0 is usual", ge=-100, le=100, strict=True))


@dataclass(frozen=True, kw_only=True)
class ExtendRequest:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    extension_hours: float = field(metadata=_doc("Hours to add to the current end", strict=True))


@dataclass(kw_only=True)
class EtaView:
    """The estimated start of a queued reservation."""

    expected: datetime | None = field(metadata=_doc("The median; null: unknown yet"))
    interval_from: datetime | None = field(metadata=_doc("Start of the interval that ends at `interval_to`"))
    interval_to: datetime | None
    confidence: float = field(metadata=_doc("The share of starts that fall into the interval"))
    latest: datetime = field(metadata=_doc("The guaranteed start: it holds even if nobody leaves early"))
    margin_seconds: float = field(metadata=_doc("The part of `latest` for snapshot and teardown"))


@dataclass(kw_only=True)
class NodeShareView:
    rank: int
    node: str
    gpu_count: int
    gpu_indices: list[int]


@dataclass(frozen=True, kw_only=True)
class GpuUseView:
    """One GPU of a reservation, as last measured."""

    gpu: str = field(metadata=_doc("Its index on the node"))
    node: str
    at: datetime
    busy: float | None = field(metadata=_doc("Utilization, from 0 to 1"))
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclass(kw_only=True)
class JobView:
    """One reservation. A job's id is its reservation's id. (Not frozen: that takes twice as long to create.)"""

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
    duration_hours: float = field(metadata=_doc("Hours from ready to its planned end, extensions included"))
    priority: int = field(default=0, metadata=_doc("Higher goes first; set by operators"))
    created_at: datetime
    launched_at: datetime | None
    expires_at: datetime | None
    cancelled_at: datetime | None
    reservation_ended: datetime | None
    released_at: datetime | None = field(metadata=_doc("When the teardown was confirmed"))
    queue_position: int | None = field(metadata=_doc("Position in the type's queue; 1 is next"))
    estimated_wait_minutes: int | None = field(metadata=_doc("The expected wait, rounded up"))
    estimated_start_at: datetime | None = field(metadata=_doc("Its start if all ahead run to their planned ends"))
    eta: EtaView | None = field(metadata=_doc("While it waits: its estimated start"))
    wait_reason: str | None
    last_queue_update: datetime | None
    step: str | None = field(metadata=_doc("The current step, for people"))
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
    warning: str | None = field(metadata=_doc("A warning for the owner (expiry near, scratch home)"))
    wait_until: datetime | None = field(
        default=None, metadata=_doc("While it waits: when it is cancelled if not started (max_wait_hours)")
    )
    users: list[str] | None = field(
        default=None, metadata=_doc("Collaborators, by GitHub name; only for a single reservation")
    )
    jupyter: str | None = field(
        default=None, metadata=_doc("starting, ready or failed; null: off. Only for a single reservation")
    )
    setup_outcome: str | None = field(
        default=None, metadata=_doc("The result of dotfiles and start-up script, once they have run")
    )
    gpus: list[GpuUseView] | None = field(
        default=None,
        metadata=_doc("Utilization of its GPUs, if measured. Only for a single reservation"),
    )
    scratch_reason: str | None = field(
        default=None,
        metadata=_doc(
            "Why it has scratch space instead of the default disk; null: it has a disk, or scratch was requested"
        ),
    )
    command: str | None = field(default=None, metadata=_doc("The command that its client runs there, if it named one"))
    exit_code: int | None = field(default=None, metadata=_doc("Exit code of its command; null: none reported"))
    outcome: str | None = field(
        default=None,
        metadata=_doc("How it ended: done, exit N, killed, cancelled, expired or failed; null: it has not ended"),
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
    times: dict[str, datetime] = field(
        default_factory=dict, metadata=_doc("Times in `message`: each as written there (UTC), and as a timestamp")
    )
