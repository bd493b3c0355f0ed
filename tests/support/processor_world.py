"""A processor over a real database and a cluster on paper, turned by hand."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.users import Role
from gpudev.domain.ids import ReservationId, UserId, new_reservation_id
from gpudev.domain.queue import MessageCause
from gpudev.domain.reservations.changes import Change, NewEvent
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation, ReservationDraft
from gpudev.processor.planning_loop import Processor
from gpudev.settings import Settings
from support.clock import ManualClock
from support.paper_cluster import PaperCluster


@dataclass
class World:
    stores: Stores
    cluster: PaperCluster
    clock: ManualClock
    processor: Processor
    settings: Settings

    async def user(self, name: str = "ada") -> UserId:
        found = await self.stores.users.find_user(name) or await self.stores.users.add_user(name, Role.USER)
        return found.user_id

    async def submit(
        self,
        gpus: int = 8,
        *,
        hours: float = 4,
        user: str = "ada",
        nodes: int = 1,
        disk: str | None = "none",
        gpu_type: str = "h100",
    ) -> ReservationId:
        draft = ReservationDraft(
            reservation_id=new_reservation_id(),
            user_id=await self.user(user),
            username=user,
            gpu_type=gpu_type,
            gpu_count=gpus,
            node_count=nodes,
            duration=timedelta(hours=hours),
            ssh_public_keys=("ssh-ed25519 AAAA test",),
            disk_name=disk,
        )
        await self.stores.reservations.submit(draft, idempotency_key=None, fingerprint="", now=self.clock.now())
        return draft.reservation_id

    async def cancel(self, reservation_id: ReservationId) -> None:
        row = await self.get(reservation_id)
        change = Change(
            reservation_id,
            row.status,
            row.version,
            NewEvent("cancelled", "cancelled by its owner"),
            to=Status.CANCELLED,
            fields={"cancelled_at": self.clock.now()},
        )
        await self.stores.reservations.apply_change(change, now=self.clock.now(), cause=MessageCause.CANCELLED)

    async def get(self, reservation_id: ReservationId) -> Reservation:
        found = await self.stores.reservations.find_reservation(reservation_id)
        assert found is not None
        return found

    async def position(self, reservation_id: ReservationId) -> int | None:
        """None: it does not wait, or nobody has looked yet."""
        estimate = (await self.get(reservation_id)).estimate
        return None if estimate is None else estimate.position

    async def latest_start(self, reservation_id: ReservationId) -> datetime | None:
        estimate = (await self.get(reservation_id)).estimate
        return None if estimate is None else estimate.latest

    async def start_by_planned_ends(self, reservation_id: ReservationId) -> datetime | None:
        async with self.stores.pool.acquire() as connection:
            found: datetime | None = await connection.fetchval(
                "SELECT estimated_start_at FROM reservations WHERE reservation_id = $1", reservation_id
            )
        return found

    async def status(self, reservation_id: ReservationId) -> Status:
        return (await self.get(reservation_id)).status

    async def kinds(self, reservation_id: ReservationId) -> list[str]:
        return [event.kind for event in await self.stores.reservations.events(reservation_id)]

    async def turn(self, times: int = 3) -> None:
        """Turn until effects have had their say: three turns settle any single cause."""
        await self.processor.acquire_lease()
        for _ in range(times):
            await self.processor.run_cycle()
            await self.processor.effects.wait_idle()
