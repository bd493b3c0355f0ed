"""The messages that wake the planning loop: which of them a turn has looked at, and which have failed. What they say is
at most "look at this id"; rows are the truth."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from gpudev.domain.commands import RESERVATION_QUEUE
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.metrics import instruments
from gpudev.ports.cluster import ClusterState
from gpudev.ports.reservations import MessageQueue, QueueMessage, ReservationStore
from gpudev.processor.log_ids import request_ids_of

log = structlog.get_logger(__name__)
MESSAGES_PER_CYCLE = 200


class ReservationMessages:
    def __init__(self, queue: MessageQueue, reservations: ReservationStore, lease_for: timedelta) -> None:
        self._queue = queue
        self._reservations = reservations
        self._lease_for = lease_for

    async def read(self) -> list[QueueMessage]:
        return await self._queue.read(RESERVATION_QUEUE, self._lease_for, MESSAGES_PER_CYCLE)

    async def sort_examined(
        self,
        messages: Sequence[QueueMessage],
        state: ClusterState | None,
        reservations: Sequence[Reservation],
        broken: Mapping[str, str],
        now: datetime,
    ) -> list[int]:
        """Those this turn has looked at. One that names nothing, or a type that could not be planned, has failed;
        while the cluster cannot be seen nothing was looked at, and they come again."""
        if state is None:
            return []
        types = {r.reservation_id: r.gpu_type for r in reservations if r.status.is_waiting}
        requests = request_ids_of(reservations) if messages else {}
        looked_at = []
        for message in messages:
            reservation_id = _find_reservation_id(message)
            error = broken.get(types.get(reservation_id, "")) if reservation_id is not None else None
            if reservation_id is None or (reservation_id not in types and not await self._exists(reservation_id)):
                error = "the message names no reservation"
            if error is None:
                looked_at.append(message.msg_id)
                _log_taken(message, requests.get(reservation_id, {}) if reservation_id is not None else {})
            elif await self._queue.fail(RESERVATION_QUEUE, message, error, now=now):
                log.error("message.dead_lettered", msg_id=message.msg_id, error=error)
                instruments.dead_lettered.labels(RESERVATION_QUEUE).inc()
        return looked_at

    async def _exists(self, reservation_id: ReservationId) -> bool:
        return await self._reservations.find_reservation(reservation_id) is not None


def _log_taken(message: QueueMessage, request: Mapping[str, str]) -> None:
    """What somebody's request set going: a later one's id is in its message, the first one's in the row."""
    body = message.body
    known = {name: body[name] for name in ("cause", "request_id") if isinstance(body.get(name), str)}
    log.info("message.taken", reservation_id=body.get("reservation_id"), **{**request, **known})


def _find_reservation_id(message: QueueMessage) -> ReservationId | None:
    try:
        return ReservationId(UUID(str(message.body.get("reservation_id"))))
    except (ValueError, AttributeError):
        return None
