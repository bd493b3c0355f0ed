"""A processor over a real database, a cluster on paper and a cloud in memory whose volumes hold something."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_disk_reconciler, make_processor
from gpudev.domain.cluster import Node
from gpudev.domain.disks.operations import DiskSettings, DiskState, Operation, OperationKind, SnapshotRecord
from gpudev.domain.ids import ReservationId
from gpudev.domain.reservations.lifecycle import Status
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.cloud import Volume
from gpudev.ports.cluster import ServerSpec
from gpudev.processor.disk_worker import DiskWorker
from gpudev.settings import Settings
from support.clock import ManualClock
from support.disks.disk_queries import disks_of
from support.disks.memory_cloud import Crash, MemoryCloud
from support.paper_cluster import PaperCluster
from support.processor_world import World

DISKS = DiskSettings(default_size_gb=10, zone="zone-a")


class AttachingCluster(PaperCluster):
    """Its machines have volumes while a dev server runs on them, and never one that another has."""

    def __init__(self, clock: ManualClock, cloud: MemoryCloud) -> None:
        super().__init__([Node("node-1", "h100", 8, zone="zone-a")], clock)
        self.cloud = cloud
        self.lets_go = True
        self.attached: dict[ReservationId, str] = {}
        self.launching: asyncio.Event | None = None
        """A launch lasts until this is set."""
        self.has_begun = asyncio.Event()
        """Such a launch is under way."""

    async def ensure_server(self, spec: ServerSpec) -> None:
        if self.launching is not None:
            self.has_begun.set()
            await self.launching.wait()
        await super().ensure_server(spec)
        if spec.volume is not None and spec.reservation_id not in self.attached:
            self.cloud.attach(spec.volume.volume_id, str(spec.reservation_id))
            self.attached[spec.reservation_id] = spec.volume.volume_id

    async def ensure_gone(self, reservation_id: ReservationId, *, keep_files: bool = False) -> bool:
        is_gone = await super().ensure_gone(reservation_id, keep_files=keep_files)
        if is_gone and self.lets_go:
            self.let_go(reservation_id)
        return is_gone

    def let_go(self, reservation_id: ReservationId) -> None:
        if (volume_id := self.attached.pop(reservation_id, None)) is not None:
            self.cloud.detach(volume_id)


class SlowCloud(MemoryCloud):
    """Making a volume lasts until `going` is set."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.takes_time = False
        self.going = asyncio.Event()
        self.going.set()

    async def ensure_volume(self, *arguments: Any, **named: Any) -> Volume:
        await self.going.wait()
        return await super().ensure_volume(*arguments, **named)


class Mortal:
    """A part whose process dies right after the n-th of these calls, and then answers nobody until the next life."""

    def __init__(self, life: "Life", part: Any, calls: tuple[str, ...]) -> None:
        self._life, self._part, self._calls = life, part, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name not in self._calls:
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            dies = self._life.begin(name)
            answer = await found(*arguments, **named)
            if dies:
                self._life.die(f"after {name}")
            return answer

        return call


class Life:
    def __init__(self, die_at: int | None = None) -> None:
        self.die_at = die_at
        self.calls, self.deaths, self.is_dead = 0, 0, False

    def begin(self, name: str) -> bool:
        """Whether it dies afterwards."""
        if self.is_dead:
            raise Crash(f"dead at {name}")
        self.calls += 1
        return self.calls == self.die_at

    def die(self, where: str) -> None:
        self.is_dead = True
        self.deaths += 1
        raise Crash(where)


class DiskStays(World):
    cluster: AttachingCluster
    cloud: SlowCloud
    work: DiskWorker
    life: Life

    @classmethod
    def begin(cls, stores: Stores, clock: ManualClock, settings: Settings, life: Life | None = None) -> "DiskStays":
        cloud = SlowCloud(clock)
        cluster = AttachingCluster(clock, cloud)
        world = cls(stores, cluster, clock, make_processor(stores, cluster, clock, settings.timing), settings)
        world.cloud, world.life = cloud, life or Life()
        world.restart()
        return world

    def restart(self) -> None:
        """Another processor, which knows nothing but what is written."""
        self.life.is_dead = False
        life, stores = self.life, self.stores
        cloud = Mortal(life, self.cloud, ("ensure_volume", "ensure_snapshot"))
        mortal: Any = replace(
            stores,
            disk_operations=Mortal(life, stores.disk_operations, ("accept", "write_changes")),
            reservations=Mortal(life, stores.reservations, ("apply_change",)),
            attachments=Mortal(life, stores.attachments, ("write_finished_operation",)),
        )
        cluster = Mortal(life, self.cluster, ("ensure_server", "ensure_gone"))
        self.work = make_disk_reconciler(mortal, cloud, self.clock, DISKS)  # type: ignore[arg-type]
        self.processor = make_processor(mortal, cluster, self.clock, self.settings.timing, disks=self.work)  # type: ignore[arg-type]
        self.processor._queue_planner._publisher._seconds = lambda: 0.0

    async def close(self) -> None:
        self.cloud.going.set()
        await self.processor.effects.cancel()
        await self.work.close()

    async def go_on(self, times: int = 4, until: Callable[[Reservation], bool] | None = None) -> None:
        """Turns, with work on disks between them; whoever dies is followed by another. `until` all there is is so."""
        for _ in range(times):
            if until is not None and all(until(one) for one in await self.stores.reservations.unreleased()):
                return
            await self.turn(1)
            await self.work.run_round()
            await self.work.wait_idle()
            if self.life.is_dead:
                lease = self.processor._lease
                if lease is not None:
                    await self.stores.leases.release(lease)
                self.restart()
            self.clock.move(seconds=3)

    async def disk(self, name: str = "data", user: str = "ada") -> DiskState:
        disks = await disks_of(self.stores, await self.user(user))
        return next(one for one in disks if one.name == name)

    async def snapshots(self, name: str = "data") -> list[SnapshotRecord]:
        return list(await self.stores.disk_operations.snapshots((await self.disk(name)).disk_id))

    async def operations(self, kind: OperationKind, name: str = "data") -> list[Operation]:
        disk = await self.disk(name)
        return [one for one in await self.stores.disk_operations.operations(disk.disk_id) if one.kind is kind]

    async def messages(self, reservation_id: ReservationId) -> list[str]:
        return [event.message for event in await self.stores.reservations.events(reservation_id)]

    async def start(self, disk: str = "data") -> ReservationId:
        rid = await self.submit(8, disk=disk)
        await self.go_on()
        assert await self.status(rid) is Status.ACTIVE, await self.messages(rid)
        return rid

    def write(self, rid: ReservationId, text: str) -> None:
        self.cloud.write(self.cluster.attached[rid], text)

    def read(self, rid: ReservationId) -> str:
        return self.cloud.contents[self.cluster.attached[rid]]

    async def is_released(self, rid: ReservationId) -> bool:
        return (await self.get(rid)).is_released
