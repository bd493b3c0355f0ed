"""Names of things. A reservation's id names everything made for it, so that all of it can be found again."""

from typing import NewType
from uuid import UUID, uuid4

ReservationId = NewType("ReservationId", UUID)
UserId = NewType("UserId", int)
DiskId = NewType("DiskId", UUID)


def new_reservation_id() -> ReservationId:
    return ReservationId(uuid4())


def new_disk_id() -> DiskId:
    return DiskId(uuid4())


def short_id(reservation_id: UUID) -> str:
    """The eight hex digits people type; unique among the unreleased (the database sees to it)."""
    return reservation_id.hex[:8]


def pod_name(reservation_id: UUID) -> str:
    return f"gpu-dev-{short_id(reservation_id)}"
