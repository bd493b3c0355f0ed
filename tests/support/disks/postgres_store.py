"""The store on a real PostgreSQL, with reservations that claim and release disks as they do in production."""

from datetime import timedelta

from contracts.disk_store_contract import NOW, StoreWorld
from gpudev.adapters.postgres.disks.operations import PostgresDiskOperations
from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.disks.operations import DiskState
from gpudev.domain.ids import DiskId, ReservationId, UserId, new_reservation_id
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft
from support.disks.disk_queries import disks_of


class PostgresStoreWorld(StoreWorld):
    def __init__(self, stores: Stores, ada: UserId, ben: UserId) -> None:
        self.stores = stores
        self.store = PostgresDiskOperations(stores.pool)
        self.ada, self.ben = ada, ben

    async def claim(self, disk_id: DiskId) -> ReservationId:
        disk = await self.disk(disk_id)
        submitted = await self.submit(disk.name)
        assert submitted.disk_id == disk_id
        return submitted.reservation_id

    async def submit(self, disk_name: str | None) -> Reservation:
        draft = ReservationDraft(
            reservation_id=new_reservation_id(),
            user_id=self.ada,
            username="ada",
            gpu_type="h100",
            gpu_count=1,
            node_count=1,
            duration=timedelta(hours=1),
            ssh_public_keys=("ssh-ed25519 AAAA",),
            disk_name=disk_name,
        )
        return await self.stores.reservations.submit(draft, idempotency_key=None, fingerprint="", now=NOW)

    async def release(self, disk_id: DiskId) -> None:
        holder = (await self.disk(disk_id)).holder
        assert holder is not None
        await self.end(holder)

    async def disks(self, user_id: UserId) -> list[DiskState]:
        return await disks_of(self.stores, user_id)

    async def end(self, reservation_id: ReservationId) -> None:
        row = await self.stores.reservations.find_reservation(reservation_id)
        assert row is not None
        event = NewEvent("cancelled", "by a test")
        change = Change(row.reservation_id, row.status, row.version, event, to=Status.CANCELLED)
        row = await self.stores.reservations.apply_change(change, now=NOW)
        change = Change(row.reservation_id, row.status, row.version, NewEvent("released", "gone"), release=True)
        await self.stores.reservations.apply_change(change, now=NOW)
