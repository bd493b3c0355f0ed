"""Drain nodes, and evict or move what runs on them. Draining alone evicts nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpudev.domain.cluster import Cordon, check_cordon_reason
from gpudev.domain.disks.names import NO_DISK
from gpudev.domain.errors import Conflict, IdTaken, NotFound, Stale
from gpudev.domain.ids import ReservationId, new_reservation_id, short_id
from gpudev.domain.queue import MessageCause
from gpudev.domain.reservations import changes
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.personalization import Personalization
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft, format_utc_time
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import CordonStore
from gpudev.ports.reservations import MoveStore, ReservationStore, UnreleasedView
from gpudev.ports.sessions import PersonalizationStore
from gpudev.workflows.guarded import retry_on

DescribeConsequence = Callable[[Reservation], str | None]
"""What happens to a reservation that stays, for people. None: nothing."""


def _no_consequence(_: Reservation) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class NodeDrain:
    cordons: CordonStore
    reservations: ReservationStore
    unreleased: UnreleasedView
    clock: Clock

    async def drain(
        self, node: str, by: str, reason: str, then: DescribeConsequence = _no_consequence
    ) -> Sequence[Reservation]:
        """The reservations on it. Doing it again notifies them again. Raises NotFound for an unknown node."""
        cordon = await self.cordons.cordon(node, by, check_cordon_reason(reason), now=self.clock.now())
        there = await self.reservations_on(node)
        for reservation in there:
            await self._notify(reservation.reservation_id, cordon, then)
        return there

    async def reservations_on(self, node: str) -> Sequence[Reservation]:
        """Including ended ones that are being torn down: until then the node is not empty."""
        return [each for each in await self.unreleased.refresh() if any(share.node == node for share in each.shares)]

    @retry_on(Stale)
    async def _notify(self, reservation_id: ReservationId, cordon: Cordon, then: DescribeConsequence) -> None:
        found = await self.reservations.find_reservation(reservation_id)
        if found is None or not found.status.holds_capacity:
            return  # ended meanwhile
        now = self.clock.now()
        message = _drain_message(found, cordon, then(found), now)
        change = changes.event_recorded(found, "node_draining", message)
        await self.reservations.apply_change(change, now=now)
        await self.cordons.add_notice(reservation_id, message)


def _drain_message(reservation: Reservation, cordon: Cordon, then: str | None, now: datetime) -> str:
    why = f" ({cordon.reason})" if cordon.reason else ""
    if then is not None:
        return f"node {cordon.node} is needed empty{why}: please save your work; {then}"
    end = reservation.planned_end()
    until = f"at the latest at {format_utc_time(end, now)}" if end else "when it ends"
    return f"node {cordon.node} is needed empty{why}: please save your work and cancel when you can, {until}"


# Eviction: ends what runs on a node, or moves it elsewhere.
#
# A running dev server cannot be carried to another machine: its processes end, and scratch space is lost. Disk,
# personalization, collaborators and Jupyter come along. A move takes two steps, since the disk is free for the second
# only after the first is torn down. It may be interrupted anywhere and repeated: everything between the steps is in
# the database.


_MOVED_EVENT = "moved"
"""The event kind of a moved reservation."""
_CONTINUES_EVENT = "continues"
"""The event kind of its successor."""
_MOVED_PRIORITY = 10
"""Moved reservations had a placement already, so they go before queued ones."""
_SHORTEST_REST = timedelta(minutes=5)
"""With less time left, a new start is not worth it."""


def keeps_files(reservation: Reservation) -> bool:
    return reservation.disk_id is not None


def time_left(reservation: Reservation) -> timedelta:
    """Of a reservation that was ended early."""
    if reservation.expires_at is None or reservation.cancelled_at is None:
        return reservation.duration  # its time had not started
    return reservation.expires_at - reservation.cancelled_at


@dataclass(frozen=True, slots=True)
class Eviction:
    reservations: ReservationStore
    personalizations: PersonalizationStore
    moves: MoveStore
    clock: Clock

    async def end(self, reservation_id: ReservationId, why: str) -> Reservation:
        """Ends it for good. No change if it has ended already."""
        return await self._end(reservation_id, f"ended by an operator: {why}", moves=False)

    async def begin_move(self, reservation_id: ReservationId, why: str) -> Reservation:
        """The first step of a move. Raises Conflict if it has no placement."""
        return await self._end(reservation_id, f"ended to be moved: {why}", moves=True)

    async def finish_move(self, reservation_id: ReservationId) -> Reservation | None:
        """The second step, after the teardown (Conflict before). None: too little time was left."""
        left = await self._get_reservation(reservation_id)
        if left.status is not Status.CANCELLED or not await self._was_moved(left):
            raise Conflict(f"{short_id(left.reservation_id)} was not moved")
        if not left.is_released:
            raise Conflict(f"{short_id(left.reservation_id)} is still being torn down")
        rest = time_left(left)
        if rest < _SHORTEST_REST:
            await self.moves.finish_move(left.reservation_id, None, now=self.clock.now())
            return None
        again = await self._resubmit(left, rest, await self.personalizations.load_personalization(left.reservation_id))
        await self._hand_over(left, again.reservation_id)
        await self._record_successor(left, again)
        return again

    @retry_on(Stale)
    async def _hand_over(self, left: Reservation, again_id: ReservationId) -> None:
        again = await self._get_reservation(again_id)
        message = f"continues {short_id(left.reservation_id)}, which was moved"
        change = changes.event_recorded(again, _CONTINUES_EVENT, message)
        await self.moves.finish_move(left.reservation_id, change, now=self.clock.now())

    async def _record_successor(self, left: Reservation, again: Reservation) -> None:
        message = f"continues as {short_id(again.reservation_id)}"
        events = await self.reservations.events(left.reservation_id)
        if message not in {each.message for each in events}:
            change = changes.event_recorded(left, _MOVED_EVENT, message)
            await self.reservations.apply_change(change, now=self.clock.now())

    @retry_on(Stale)
    async def _end(self, reservation_id: ReservationId, message: str, *, moves: bool) -> Reservation:
        found = await self._get_reservation(reservation_id)
        if found.status.is_terminal and (not moves or await self._was_moved(found)):
            return found
        if not found.status.holds_capacity:
            raise Conflict(f"{short_id(found.reservation_id)} is {found.status}: it has no placement")
        if moves:
            found = await self._mark_moved(found)
        return await self._cancel(found, message, moves=moves)

    async def _mark_moved(self, found: Reservation) -> Reservation:
        """Recorded before it is done, so that an interrupted move can be resumed."""
        if await self._was_moved(found):
            return found
        message = "ended here; submitted again with the remaining time"
        change = changes.event_recorded(found, _MOVED_EVENT, message)
        return await self.reservations.apply_change(change, now=self.clock.now())

    async def _cancel(self, found: Reservation, message: str, *, moves: bool) -> Reservation:
        now = self.clock.now()
        change = changes.cancelled(found, message, now)
        if not moves:
            return await self.reservations.apply_change(change, now=now, cause=MessageCause.CANCELLED)
        await self.moves.begin_move(change, now=now)
        return await self._get_reservation(found.reservation_id)

    @retry_on(IdTaken)
    async def _resubmit(self, left: Reservation, rest: timedelta, setup: Personalization) -> Reservation:
        key = f"moved-{left.reservation_id}"  # idempotent: a repetition returns the same reservation
        disk_name = left.disk_name if keeps_files(left) else NO_DISK
        draft = replace(
            ReservationDraft(**left.spec_fields(), disk_name=disk_name, personalization=setup),
            reservation_id=new_reservation_id(),
            duration=rest,
            priority=max(left.priority, _MOVED_PRIORITY),
        )
        return await self.reservations.submit(draft, idempotency_key=key, fingerprint=key, now=self.clock.now())

    async def _get_reservation(self, reservation_id: ReservationId) -> Reservation:
        found = await self.reservations.find_reservation(reservation_id)
        if found is None:
            raise NotFound(f"reservation {reservation_id} not found")
        return found

    async def _was_moved(self, reservation: Reservation) -> bool:
        return any(event.kind == _MOVED_EVENT for event in await self.reservations.events(reservation.reservation_id))
