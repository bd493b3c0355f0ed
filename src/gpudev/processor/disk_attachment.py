"""A dev server's home: has the disk made ready before it starts and put away after its end, and tells the reservation.

It waits only briefly: what takes longer goes on by itself, and whoever asked comes again when there is news.
"""

import asyncio
from typing import assert_never
from uuid import uuid4

from gpudev.domain.disk_requests import MakeReady, PutAway
from gpudev.domain.disks.contents import Contents
from gpudev.domain.disks.operations import OperationId
from gpudev.domain.errors import Conflict, GpuDevError, NotFound, Stale
from gpudev.domain.ids import DiskId
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.disks.attachment import (
    Ask,
    Asked,
    Failed,
    LetGo,
    Ready,
    Wait,
    decide_away,
    decide_ready,
    disk_ready,
    disk_step,
    home_on,
    ready_at_once,
)
from gpudev.ports.clock import Clock
from gpudev.ports.cluster import HomeVolume
from gpudev.ports.disks import HeldDisk, HeldDisks
from gpudev.ports.reservations import ReservationStore
from gpudev.processor.disk_worker import DiskWork
from gpudev.settings import Timing

_READY_WITHIN_S = 0.3
"""Then it is told what is going on."""
_SEEN_WITHIN_S = 1.0
"""A cloud usually shows a volume sooner. Where it does not, the operation looks for it by itself."""
_AWAY_WITHIN_S = 5.0


class StillWorking(GpuDevError):
    """It goes on, and there will be news."""

    code = "still_working"


class DiskFailed(GpuDevError):
    """The disk cannot be made ready, for a reason in words."""

    code = "disk_failed"


class Homes:
    def __init__(
        self, work: DiskWork, held: HeldDisks, reservations: ReservationStore, clock: Clock, timing: Timing
    ) -> None:
        self._work = work
        self._held = held
        self._reservations = reservations
        self._clock = clock
        self._timing = timing

    async def make_ready(
        self, reservation: Reservation, disk_id: DiskId, zone: str | None
    ) -> tuple[Reservation, HomeVolume]:
        """The volume, and the reservation as it is after being told. Raises StillWorking and DiskFailed."""
        held = await self._find(reservation, disk_id)
        before = held.disk.volume_id
        decision = decide_ready(reservation, held, zone)
        if isinstance(decision, Ask) and await self._ready_at_once(reservation, held, zone, decision.key):
            return reservation, home_on(held.disk)
        if isinstance(decision, Ask | Wait):
            request = MakeReady(disk_id, reservation.reservation_id, zone)
            held = await self._go_on(reservation, decision, request, _READY_WITHIN_S)
            decision = decide_ready(reservation, held, zone)
        match decision:
            case Ready():
                self._forget(held)
                if reservation.prepare_by is not None or held.disk.volume_id != before:
                    change = disk_ready(reservation, held, self._clock.now(), self._timing)
                    reservation = await self._reservations.change(change, now=self._clock.now())
                return reservation, decision.volume
            case Failed():
                self._forget(held)
                raise DiskFailed(decision.reason)
            case Wait():
                await self._tell(reservation, decision.step)
                raise StillWorking(decision.step)
            case Ask():
                raise StillWorking("asked for again")
            case _:
                assert_never(decision)

    async def _ready_at_once(self, reservation: Reservation, held: HeldDisk, zone: str | None, key: str) -> bool:
        """Most disks are as they were left: one look and one write, and the dev server starts."""
        if held.disk.volume_id is None or reservation.prepare_by is not None:
            return False
        try:
            async with asyncio.timeout(_SEEN_WITHIN_S):
                volume = await self._work.find_volume(held.disk.volume_id)
        except TimeoutError:
            return False
        asked = Asked(OperationId(uuid4()), reservation.reservation_id, zone, self._clock.now())
        changes = ready_at_once(asked, held.disk, volume, self._work.settings)
        if changes is None:
            return False
        self._work.expect(asked.operation_id)
        return await self._held.write_at_once(changes, key, now=asked.at, by="processor")

    async def hear(self, reservation: Reservation, disk_id: DiskId, contents: Contents) -> None:
        """What its dev server says is on the disk, before it goes."""
        await self._work.hear(reservation.reservation_id, disk_id, contents)

    async def put_away(self, reservation: Reservation, disk_id: DiskId) -> str | None:
        """What became of the disk, in words. Raises StillWorking."""
        held = await self._find(reservation, disk_id)
        decision = decide_away(reservation, held, self._clock.now(), self._timing)
        if isinstance(decision, Ask | Wait):
            request = PutAway(disk_id, reservation.reservation_id)
            held = await self._go_on(reservation, decision, request, _AWAY_WITHIN_S)
            decision = decide_away(reservation, held, self._clock.now(), self._timing)
        match decision:
            case LetGo():
                self._forget(held)
                return decision.told
            case Wait():
                raise StillWorking(decision.step)
            case Ask():
                raise StillWorking("asked for again")
            case _:
                assert_never(decision)

    async def _go_on(
        self, reservation: Reservation, decision: Ask | Wait, request: MakeReady | PutAway, within_s: float
    ) -> HeldDisk:
        match decision:
            case Ask():
                operation_id = await self._ask(reservation, request, decision.key)
            case Wait():
                operation_id = decision.operation.operation_id
            case _:
                assert_never(decision)
        await self._work.advance(operation_id, within_s)
        return await self._find(reservation, request.disk_id)

    async def _ask(self, reservation: Reservation, request: MakeReady | PutAway, key: str) -> OperationId:
        try:
            return await self._work.ask(reservation.user_id, request, key)
        except Stale:
            raise
        except (NotFound, Conflict) as error:  # it is no longer the reservation's, or no more
            raise DiskFailed(str(error)) from error

    async def _tell(self, reservation: Reservation, step: str) -> None:
        change = disk_step(reservation, step, self._clock.now(), self._timing)
        if change is not None:
            await self._reservations.change(change, now=self._clock.now())

    async def _find(self, reservation: Reservation, disk_id: DiskId) -> HeldDisk:
        held = await self._held.find(disk_id, reservation.reservation_id)
        if held is None:
            raise NotFound(f"there is no disk {reservation.disk_name!r} any more")
        return held

    def _forget(self, held: HeldDisk) -> None:
        for operation in (held.ready, held.away):
            if operation is not None:
                self._work.forget(operation.operation_id)
