"""Whoever carries out what is asked of disks, over a cloud in memory, and how tests ask."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2

from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind
from gpudev.domain.disks.operations import DiskSettings, MakeReady, PutAway
from gpudev.domain.ids import DiskId
from gpudev.workflows.disks.operations import DiskOperations
from support.api.harness import Api, identifier, submit
from support.disks.due_operations import run_due
from support.disks.memory_cloud import MemoryCloud

LISTING = Contents(
    files=2,
    folders=1,
    size_bytes=3000,
    entries=(
        DiskEntry("notes.txt", DiskEntryKind.FILE, 1000, datetime(2026, 3, 1, 8, tzinfo=UTC)),
        DiskEntry("papers", DiskEntryKind.FOLDER, 0, datetime(2026, 3, 1, 8, tzinfo=UTC)),
    ),
)


@dataclass
class Machine:
    """Whoever carries operations out, and reservations that write to disks."""

    api: Api
    actor: DiskOperations
    cloud: MemoryCloud

    async def run(self) -> None:
        """Everything that is asked for, to its end."""
        for _ in range(20):
            self.cloud.complete_snapshots()
            due = await run_due(self.actor)
            if due is None:
                return
            self.api.world.clock.move(seconds=3)
        raise AssertionError("it never ended")

    async def stay(self, client: httpx2.AsyncClient, disk: str, content: str) -> str:
        """A reservation with the disk, from its start to its end; what was written there."""
        job = await submit(client, disk_name=disk)
        await self.begin(client, disk, content, job)
        await self.end(client, disk, job)
        return content

    async def begin(self, client: httpx2.AsyncClient, disk: str, content: str, job: dict[str, Any]) -> None:
        view = await look(client, disk)
        owner = await self.owner(client, disk)
        await self.actor.request_operation(owner, MakeReady(DiskId(UUID(view["disk_id"])), identifier(job), "zone-a"))
        await self.run()
        volume = (await look(client, disk))["volume_id"]
        self.cloud.attach(volume, job["job_id"])
        self.cloud.write(volume, content)

    async def end(self, client: httpx2.AsyncClient, disk: str, job: dict[str, Any]) -> None:
        view = await look(client, disk)
        self.cloud.detach(view["volume_id"])
        owner = await self.owner(client, disk)
        await self.actor.request_operation(owner, PutAway(DiskId(UUID(view["disk_id"])), identifier(job)))
        await self.run()
        self.cloud.complete_snapshots()
        await self.actor.settle_snapshots()
        contents = self.api.world.stores.disk_contents
        for snapshot in await contents.list_snapshots_without_contents():
            await contents.save_contents(snapshot.snapshot_id, LISTING, now=self.api.world.clock.now())
        assert (await client.post(f"/v1/jobs/{job['job_id']}/cancel")).status_code == 200

    async def content(self, client: httpx2.AsyncClient, disk: str) -> str:
        volume_id: str = (await look(client, disk))["volume_id"]
        return self.cloud.contents[volume_id]

    async def owner(self, client: httpx2.AsyncClient, disk: str) -> Any:
        found = await self.api.services.disk_views.find_disk(DiskId(UUID((await look(client, disk))["disk_id"])))
        assert found is not None
        return found.state.user_id


async def look(client: httpx2.AsyncClient, name: str, query: str = "") -> dict[str, Any]:
    answer = await client.get(f"/v1/disks/{name}{query}")
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


async def ask(client: httpx2.AsyncClient, path: str, body: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Something that is granted, as it was answered."""
    answer = await client.post(f"/v1/disks{path}", json=body, **more)
    assert answer.status_code == 202, answer.text
    view: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/disks/{view['disk_name']}/operations/{view['operation_id']}"
    return view


async def create(client: httpx2.AsyncClient, name: str = "data", **more: Any) -> dict[str, Any]:
    return await ask(client, "", {"disk_name": name, **more})


async def names(client: httpx2.AsyncClient, query: str = "") -> list[str]:
    return [disk["disk_name"] for disk in (await client.get(f"/v1/disks{query}")).json()["disks"]]


def make_machine(api: Api, settings: DiskSettings | None = None) -> Machine:
    cloud = MemoryCloud(api.world.clock)
    actor = DiskOperations(api.world.stores.disk_operations, cloud, api.world.clock, settings or DiskSettings())
    return Machine(api, actor, cloud)
