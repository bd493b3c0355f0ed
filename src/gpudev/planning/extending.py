"""Extending: how long may a running reservation stay? Freely while nobody waits for its GPUs; otherwise only as
far as it moves nobody's planned start."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.domain.capacity import Holding, Node
from gpudev.domain.ids import ReservationId
from gpudev.planning.plan import Request
from gpudev.planning.queueing import DEFAULT_MARGIN
from gpudev.settings import Limits


@dataclass(frozen=True, slots=True)
class Granted:
    until: datetime


@dataclass(frozen=True, slots=True)
class NotGranted:
    reason: str
    at_most: datetime | None = None
    """The end that would be granted instead, if any later than the present one."""
    invalid: bool = False
    """True: the number itself is wrong; no state of the cluster would allow it."""


def extend(
    reservation_id: ReservationId,
    holding: Holding,
    hours: float,
    *,
    nodes: Sequence[Node],
    holdings: Sequence[Holding],
    queue: Sequence[Request],
    now: datetime,
    launched_at: datetime,
    limits: Limits,
    margin: timedelta = DEFAULT_MARGIN,
) -> Granted | NotGranted:
    raise NotImplementedError
