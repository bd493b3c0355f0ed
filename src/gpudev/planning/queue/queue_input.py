"""What one GPU type's queue is planned from, gathered from everything unreleased: its nodes, what is held on them and
until when at most, who waits and what they ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpudev.domain.cluster import Anchor, Holding, Node
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.facts import TypeFacts, of_one_type, queue_order
from gpudev.planning.queue.plan import Request
from gpudev.planning.spans import asked_by, held_by
from gpudev.settings import Timing


@dataclass(frozen=True, slots=True)
class Scene:
    gpu_type: str
    now: datetime
    timing: Timing
    nodes: Sequence[Node]
    waiting: Mapping[ReservationId, Reservation]
    holders: Sequence[Reservation]
    holdings: Sequence[Holding]
    requests: Sequence[Request]
    """In the queue's order."""
    is_fair_share: bool = False
    """What was told before does not bind then: who used less may come and go first."""

    def facts(self) -> TypeFacts:
        return of_one_type(self.gpu_type, self.nodes, self.holdings, self.now, self.timing.teardown_margin)

    def began(self) -> dict[ReservationId, datetime]:
        """When the clock of those who hold something began to run."""
        return {row.reservation_id: row.launched_at for row in self.holders if row.launched_at is not None}

    def preparing(self) -> list[Reservation]:
        return [row for row in self.holders if row.status is Status.PREPARING]


class Known:
    """Requests and holdings as they were last made: most rows do not change from turn to turn, and there are many."""

    def __init__(self) -> None:
        self._requests: dict[ReservationId, tuple[Reservation, int, Anchor | None, Request]] = {}
        self._holdings: dict[ReservationId, tuple[Reservation, Holding | None]] = {}

    def requests(
        self,
        rows: Sequence[Reservation],
        timing: Timing,
        turns: Mapping[ReservationId, int],
        anchors: Mapping[ReservationId, Anchor],
    ) -> list[Request]:
        made = {}
        for row in rows:
            turn = turns.get(row.reservation_id, 0)
            anchor = anchors.get(row.reservation_id) if anchors else None
            before = self._requests.get(row.reservation_id)
            if before is None or before[0] is not row or before[1] != turn or before[2] != anchor:
                before = (row, turn, anchor, asked_by(row, timing, turn, anchor))
            made[row.reservation_id] = before
        self._requests = made
        return sorted((request for _, _, _, request in made.values()), key=queue_order)

    def holdings(self, rows: Sequence[Reservation], now: datetime, timing: Timing) -> list[Holding]:
        made = {}
        for row in rows:
            before = self._holdings.get(row.reservation_id)
            if before is None or before[0] is not row or row.status is Status.PREPARING:
                before = (row, held_by(row, now, timing))
            made[row.reservation_id] = before
        self._holdings = made
        return [holding for _, holding in made.values() if holding is not None]


def gather(
    reservations: Sequence[Reservation],
    nodes: Sequence[Node],
    now: datetime,
    timing: Timing,
    gpu_type: str,
    *,
    turns: Mapping[ReservationId, int] | None = None,
    anchors: Mapping[ReservationId, Anchor] | None = None,
    known: Known | None = None,
) -> Scene:
    """`reservations`: everything unreleased, of any type; `nodes`: all there are. `turns`: whose turn it is by fair
    share, where that is on. `anchors`: of those who wait and have a disk somewhere."""
    known = known or Known()
    waiting = [row for row in reservations if row.gpu_type == gpu_type and row.status.is_waiting and not row.is_leaving]
    own_nodes = [node for node in nodes if node.gpu_type == gpu_type]
    names = {node.name for node in own_nodes}
    # Whatever is held there, by whichever type: a node may have come back as another one.
    holders = [row for row in reservations if row.shares and any(share.node in names for share in row.shares)]
    return Scene(
        gpu_type,
        now,
        timing,
        own_nodes,
        {row.reservation_id: row for row in waiting},
        holders,
        known.holdings(holders, now, timing),
        known.requests(waiting, timing, turns or {}, anchors or {}),
        is_fair_share=turns is not None,
    )
