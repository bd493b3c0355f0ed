"""Ids and names. Everything created for a reservation bears its id, so it can be found."""

import re
from collections.abc import Sequence
from typing import NewType
from uuid import UUID, uuid4

from gpudev.domain.errors import AmbiguousId, Invalid

ReservationId = NewType("ReservationId", UUID)
UserId = NewType("UserId", int)
DiskId = NewType("DiskId", UUID)

_ID_PREFIX = re.compile(r"[0-9a-f]{4,32}")
MAX_CANDIDATES = 5
"""An ambiguous prefix names at most this many ids."""


def new_reservation_id() -> ReservationId:
    return ReservationId(uuid4())


def new_disk_id() -> DiskId:
    return DiskId(uuid4())


def short_id(reservation_id: UUID) -> str:
    """The eight hex digits people type; unique among unreleased reservations (by a database constraint)."""
    return reservation_id.hex[:8]


def pod_name(reservation_id: UUID) -> str:
    return f"gpu-dev-{short_id(reservation_id)}"


def parse_id_prefix(text: str, field: str, what: str = "id") -> str:
    """The hex digits of an id or of its prefix, from user input. Raises Invalid."""
    digits = text.replace("-", "").lower()
    if len(text) > 36 or not _ID_PREFIX.fullmatch(digits):
        raise Invalid(
            f"invalid {what} {text[:80]!r} (expected all of it, or at least its first 4 hex digits)", field=field
        )
    return digits


def ambiguous_id_error(text: str, candidates: Sequence[UUID]) -> AmbiguousId:
    """Lists the candidates with enough digits to distinguish them: eight are unique among the unreleased only."""
    shown = candidates[:MAX_CANDIDATES]
    shorts = [short_id(each) for each in shown]
    if len(set(shorts)) < len(shorts):
        shorts = [str(each) for each in shown]
    return AmbiguousId(f"{text!r} could be {' or '.join(shorts)}; give more digits")
