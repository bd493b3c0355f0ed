"""Disks through the API: asked for, carried out by hand over a cloud in memory, looked at again."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2
import pytest

from disks.memory_cloud import MemoryCloud
from gpudev.domain.disk_contents import Contents, Entry, EntryKind
from gpudev.domain.disk_operations import DiskSettings
from gpudev.domain.disk_requests import MakeReady, PutAway
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import DiskId
from gpudev.workflows.disk_operations import DiskOperations
from support.api import Api, identifier, public_key, refused, submit

LISTING = Contents(
    files=2,
    folders=1,
    size_bytes=3000,
    entries=(
        Entry("notes.txt", EntryKind.FILE, 1000, datetime(2026, 3, 1, 8, tzinfo=UTC)),
        Entry("papers", EntryKind.FOLDER, 0, datetime(2026, 3, 1, 8, tzinfo=UTC)),
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
            due = await self.actor.run_due()
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
        await self.actor.ask(owner, MakeReady(DiskId(UUID(view["disk_id"])), identifier(job), "zone-a"))
        await self.run()
        volume = (await look(client, disk))["volume_id"]
        self.cloud.attach(volume, job["job_id"])
        self.cloud.write(volume, content)

    async def end(self, client: httpx2.AsyncClient, disk: str, job: dict[str, Any]) -> None:
        view = await look(client, disk)
        self.cloud.detach(view["volume_id"])
        owner = await self.owner(client, disk)
        await self.actor.ask(owner, PutAway(DiskId(UUID(view["disk_id"])), identifier(job)))
        await self.run()
        self.cloud.complete_snapshots()
        await self.actor.settle_snapshots()
        contents = self.api.world.stores.disk_contents
        for snapshot in await contents.missing():
            await contents.keep(snapshot.snapshot_id, LISTING, now=self.api.world.clock.now())
        assert (await client.post(f"/v1/jobs/{job['job_id']}/cancel")).status_code == 200

    async def content(self, client: httpx2.AsyncClient, disk: str) -> str:
        volume_id: str = (await look(client, disk))["volume_id"]
        return self.cloud.contents[volume_id]

    async def owner(self, client: httpx2.AsyncClient, disk: str) -> Any:
        found = await self.api.services.disk_views.find(DiskId(UUID((await look(client, disk))["disk_id"])))
        assert found is not None
        return found.state.user_id


@pytest.fixture
def machine(api: Api) -> Machine:
    cloud = MemoryCloud(api.world.clock)
    return Machine(api, DiskOperations(api.world.stores.disk_operations, cloud, api.world.clock, DiskSettings()), cloud)


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


async def test_a_disk_is_there_at_once_and_its_creation_can_be_followed(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    asked = await create(ada, size_gb=200)
    assert (asked["kind"], asked["state"], asked["disk_name"], asked["result"]) == ("create", "waiting", "data", None)
    view = await look(ada, "data")
    assert (view["size_gb"], view["state"], view["in_use"], view["reservation_id"]) == (200, "busy", False, None)
    await machine.run()
    done = (await ada.get(f"/v1/disks/data/operations/{asked['operation_id']}")).json()
    assert (done["state"], done["error"]) == ("done", None)
    assert done["result"]
    assert done["finished_at"] >= done["asked_at"]
    assert (await look(ada, "data"))["state"] == "free"
    assert (await ada.get(f"/v1/disks/data/operations/{asked['operation_id'][:8]}")).json() == done
    assert (await ada.get("/v1/disks/data/operations")).json()["operations"] == [done]
    line = (await look(ada, "data"))["history"][0]
    assert (line["message"], line["by"]) == ("created, 200 GB", "ada")


async def test_a_disk_without_a_size_has_the_usual_one(ada: httpx2.AsyncClient) -> None:
    await create(ada)
    assert (await look(ada, "data"))["size_gb"] == DiskSettings().default_size_gb


async def test_disks_are_listed_by_name_and_only_ones_own(ada: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    for name in ("zebra", "apple"):
        await create(ada, name)
    await create(bob, "mango")
    assert await names(ada) == ["apple", "zebra"]
    assert await names(bob) == ["mango"]


async def test_another_users_disk_does_not_exist(ada: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    asked = await create(ada)
    said = refused(await bob.get("/v1/disks/data"), 404, "not_found")
    assert said == refused(await bob.get("/v1/disks/data"), 404, "not_found")
    assert said == "you have no disk 'data'"
    for path in ("", "/snapshots", "/contents", "/operations", f"/operations/{asked['operation_id']}", "?deleted=true"):
        refused(await bob.get(f"/v1/disks/data{path}"), 404, "not_found")
    refused(await bob.delete("/v1/disks/data"), 404, "not_found")
    for act, body in (
        ("restore", {}),
        ("rename", {"new_name": "mine"}),
        ("resize", {"size_gb": 500}),
        ("clone", {"new_name": "mine"}),
        ("snapshots", None),
    ):
        answer = await bob.post(f"/v1/disks/data/{act}", json=body)
        refused(answer, 404, "not_found")
    assert await names(bob, "?deleted=true") == []


async def test_what_is_no_name_for_a_disk_is_refused(ada: httpx2.AsyncClient) -> None:
    await create(ada, "data")
    for name in ("Data", "my_disk", "a b", "-" * 64, "ä", "none", ""):
        refused(await ada.post("/v1/disks", json={"disk_name": name}), 422, "invalid", "disk_name")
        refused(await ada.post("/v1/disks/data/rename", json={"new_name": name}), 422, "invalid", "new_name")
        refused(await ada.post("/v1/disks/data/clone", json={"new_name": name}), 422, "invalid", "new_name")
    assert await names(ada) == ["data"]


async def test_what_is_no_size_is_refused(ada: httpx2.AsyncClient) -> None:
    for size in (0, -5, 4097, 10**9, "200", 1.5, True):
        refused(await ada.post("/v1/disks", json={"disk_name": "data", "size_gb": size}), 422, "invalid", "size_gb")
    assert await names(ada) == []


async def test_a_name_is_taken_once(ada: httpx2.AsyncClient) -> None:
    await create(ada)
    assert "already" in refused(await ada.post("/v1/disks", json={"disk_name": "data"}), 409, "conflict")


async def test_count_and_size_of_a_users_disks_have_limits(ada: httpx2.AsyncClient, api: Api) -> None:
    limits = DiskSettings()
    for number in range(limits.max_per_user):
        await create(ada, f"d{number}", size_gb=1)
    answer = await ada.post("/v1/disks", json={"disk_name": "one-more", "size_gb": 1})
    assert str(limits.max_per_user) in refused(answer, 429, "limit_reached")
    bob = await api.as_user("bob")
    await create(bob, "large", size_gb=limits.max_size_gb)
    await create(bob, "larger", size_gb=limits.max_gb_per_user - limits.max_size_gb)
    refused(await bob.post("/v1/disks", json={"disk_name": "small", "size_gb": 1}), 429, "limit_reached")


async def test_the_same_key_gives_the_same_operation_and_never_another(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient
) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = await ada.post("/v1/disks", json={"disk_name": "data"}, headers=key)
    again = await ada.post("/v1/disks", json={"disk_name": "data"}, headers=key)
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    assert await names(ada) == ["data"]
    for answer in (
        await ada.post("/v1/disks", json={"disk_name": "other"}, headers=key),
        await ada.post("/v1/disks", json={"disk_name": "data", "size_gb": 7}, headers=key),
        await ada.delete("/v1/disks/data", headers=key),
    ):
        refused(answer, 409, "idempotency_mismatch")
    assert await names(ada) == ["data"]
    theirs = await ask(bob, "", {"disk_name": "data"}, headers=key)
    assert theirs["operation_id"] != first.json()["operation_id"]


async def test_a_key_of_the_systems_own_is_nobodys_to_use(ada: httpx2.AsyncClient, machine: Machine) -> None:
    await create(ada)
    await machine.run()
    job = await submit(ada, disk_name="data")
    disk_id = DiskId(UUID((await look(ada, "data"))["disk_id"]))
    theirs = await ask(ada, "/data/resize", {"size_gb": 200}, headers={"Idempotency-Key": "make-ready"})
    await machine.run()
    ours = await machine.actor.ask(
        await machine.owner(ada, "data"), MakeReady(disk_id, identifier(job), "zone-a"), key="make-ready"
    )
    assert ours is not None
    assert str(ours.operation_id) != theirs["operation_id"]
    assert ours.kind == "make_ready"


async def test_of_many_with_one_key_at_once_one_is_carried_out(ada: httpx2.AsyncClient) -> None:
    key = {"Idempotency-Key": "k-2"}
    answers = await asyncio.gather(*(ada.post("/v1/disks", json={"disk_name": "data"}, headers=key) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["operation_id"] for answer in answers}) == 1
    assert sum("idempotent-replay" not in answer.headers for answer in answers) == 1


async def test_a_disk_in_use_names_its_holder_and_only_grows_or_is_kept(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    await create(ada)
    await machine.run()
    job = await submit(ada, disk_name="data")
    await machine.begin(ada, "data", "draft 1", job)
    view = await look(ada, "data")
    assert (view["state"], view["in_use"], view["reservation_id"]) == ("in use", True, job["reservation_id"])
    short = job["reservation_id"][:8]
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "data"}
    for answer in (
        await ada.post("/v1/jobs/submit", json=body),
        await ada.delete("/v1/disks/data"),
        await ada.post("/v1/disks/data/rename", json={"new_name": "other"}),
        await ada.post("/v1/disks/data/clone", json={"new_name": "other"}),
    ):
        assert short in refused(answer, 409, "disk_held")
    await ask(ada, "/data/snapshots")
    await machine.run()
    await ask(ada, "/data/resize", {"size_gb": 150})
    await machine.run()
    assert (await look(ada, "data"))["size_gb"] == 150
    smaller = await ada.post("/v1/disks/data/resize", json={"size_gb": 150})
    assert "only grow" in refused(smaller, 422, "invalid", "size_gb")


async def test_a_deleted_disk_is_hidden_and_comes_back_with_its_files(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    await create(ada)
    await machine.stay(ada, "data", "thesis")
    answer = await ada.delete("/v1/disks/data")
    assert (answer.status_code, answer.json()["kind"]) == (202, "delete")
    assert await names(ada) == []
    said = refused(await ada.get("/v1/disks/data"), 404, "not_found")
    assert "can be restored: `gpu-dev disk restore data`" in said
    [view] = (await ada.get("/v1/disks?deleted=true")).json()["disks"]
    assert (view["state"], view["is_deleted"]) == ("deleted", True)
    assert view["restorable_until"] > view["deleted_at"]
    await machine.run()
    assert (await ada.get(answer.headers["location"])).json()["state"] == "done"
    assert (await look(ada, "data", "?deleted=true"))["disk_id"] == view["disk_id"]
    back = await ask(ada, "/data/restore", {})
    assert back["kind"] == "undelete"
    await machine.run()
    assert (await look(ada, "data"))["disk_id"] == view["disk_id"]
    assert await machine.content(ada, "data") == "thesis"
    assert "not deleted" in refused(await ada.post("/v1/disks/data/restore", json={}), 409, "conflict")


async def test_of_several_deleted_ones_the_last_comes_back_unless_another_is_named(
    ada: httpx2.AsyncClient, machine: Machine, api: Api
) -> None:
    ids = []
    for _ in range(2):
        await create(ada)
        ids.append((await look(ada, "data"))["disk_id"])
        await machine.run()
        await ada.delete("/v1/disks/data")
        await machine.run()
        api.world.clock.move(hours=1)
    first, second = ids
    await ask(ada, "/data/restore", {})
    assert (await look(ada, "data"))["disk_id"] == second
    taken = await ada.post("/v1/disks/data/restore", json={})
    assert "already" in refused(taken, 409, "conflict")
    other = await ask(ada, "/data/restore", {"new_name": "older", "disk_id": first[:8]})
    assert (other["disk_name"], other["disk_id"]) == ("older", first)
    assert await names(ada) == ["data", "older"]
    refused(await ada.post("/v1/disks/data/restore", json={"disk_id": "ffff"}), 404, "not_found")
    refused(await ada.post("/v1/disks/data/restore", json={"disk_id": "x"}), 422, "invalid", "disk_id")


async def test_an_older_snapshot_is_restored_and_what_was_there_is_kept(
    ada: httpx2.AsyncClient, machine: Machine, api: Api
) -> None:
    await create(ada)
    for content in ("draft 1", "draft 2"):
        await machine.stay(ada, "data", content)
        api.world.clock.move(hours=1)
    newest, oldest = (await ada.get("/v1/disks/data/snapshots")).json()["snapshots"]
    assert (newest["is_current"], oldest["is_current"]) == (True, False)
    assert newest["why"] == "end of reservation"
    assert (newest["usable"], newest["files"], newest["size_bytes"]) == (True, 2, 3000)
    asked = await ask(ada, "/data/restore", {"snapshot_id": oldest["snapshot_id"][:8]})
    assert (asked["kind"], asked["snapshot_id"]) == ("restore", oldest["snapshot_id"])
    await machine.run()
    assert await machine.content(ada, "data") == "draft 1"
    kept = (await ada.get("/v1/disks/data/snapshots")).json()["snapshots"]
    assert {newest["snapshot_id"], oldest["snapshot_id"]} <= {one["snapshot_id"] for one in kept}


async def test_a_snapshot_is_named_by_its_beginning_and_only_of_this_disk(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    await create(ada)
    await machine.stay(ada, "data", "draft")
    await create(ada, "other")
    [one] = (await ada.get("/v1/disks/data/snapshots")).json()["snapshots"]
    for body, status, code, field in (
        ({"snapshot_id": "zz"}, 422, "invalid", "snapshot_id"),
        ({"snapshot_id": "0000000000000000"}, 404, "not_found", None),
        ({"snapshot_id": one["snapshot_id"], "new_name": "x"}, 422, "invalid", "new_name"),
        ({"snapshot_id": one["snapshot_id"], "disk_id": "abcd"}, 422, "invalid", "disk_id"),
        ({"unknown": 1}, 422, "invalid", "unknown"),
    ):
        refused(await ada.post("/v1/disks/data/restore", json=body), status, code, field)
    refused(await ada.post("/v1/disks/other/restore", json={"snapshot_id": one["snapshot_id"]}), 404, "not_found")
    await ada.delete("/v1/disks/data")
    await machine.run()
    said = refused(await ada.post("/v1/disks/data/restore", json={"snapshot_id": one["snapshot_id"]}), 409, "conflict")
    assert "Restore it first" in said


async def test_a_clone_is_another_disk_with_the_same_files(ada: httpx2.AsyncClient, machine: Machine) -> None:
    await create(ada, size_gb=10)
    await machine.stay(ada, "data", "draft 1")
    [first] = (await ada.get("/v1/disks/data/snapshots")).json()["snapshots"]
    await machine.stay(ada, "data", "draft 2")
    asked = await ask(ada, "/data/clone", {"new_name": "copy"})
    assert (asked["kind"], asked["disk_name"]) == ("clone", "copy")
    await machine.run()
    older = await ask(ada, "/data/clone", {"new_name": "old-copy", "size_gb": 20, "snapshot_id": first["snapshot_id"]})
    await machine.run()
    for disk, content in (("copy", "draft 2"), ("old-copy", "draft 1")):
        job = await submit(ada, disk_name=disk)
        await machine.begin(ada, disk, f"{content}, changed", job)
        await machine.end(ada, disk, job)
    assert older["snapshot_id"] == first["snapshot_id"]
    assert (await look(ada, "old-copy"))["size_gb"] == 20
    assert await machine.content(ada, "data") == "draft 2"
    refused(await ada.post("/v1/disks/data/clone", json={"new_name": "x", "size_gb": 5}), 422, "invalid", "size_gb")
    empty = await create(ada, "empty")
    assert empty["disk_name"] == "empty"
    await machine.run()
    assert "nothing to clone" in refused(
        await ada.post("/v1/disks/empty/clone", json={"new_name": "x"}), 409, "conflict"
    )
    assert "nothing to keep" in refused(await ada.post("/v1/disks/empty/snapshots"), 409, "conflict")


async def test_a_renamed_disk_is_found_by_its_new_name_with_its_history(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    await create(ada)
    await machine.run()
    before = await look(ada, "data")
    asked = await ask(ada, "/data/rename", {"new_name": "corpus"})
    assert asked["disk_name"] == "corpus"
    await machine.run()
    refused(await ada.get("/v1/disks/data"), 404, "not_found")
    after = await look(ada, "corpus")
    assert after["disk_id"] == before["disk_id"]
    assert "renamed from 'data' to 'corpus'" in [line["message"] for line in after["history"]]
    assert (await ada.get(f"/v1/disks/corpus/operations/{asked['operation_id']}")).json()["state"] == "done"


async def test_what_was_on_a_disk_is_listed_as_it_was_when_its_snapshot_was_taken(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    await create(ada)
    await machine.run()
    assert "no listing" in refused(await ada.get("/v1/disks/data/contents"), 404, "not_found")
    await machine.stay(ada, "data", "draft")
    found = (await ada.get("/v1/disks/data/contents")).json()
    assert (found["files"], found["folders"], found["size_bytes"], found["is_complete"]) == (2, 1, 3000, False)
    assert found["entries"][0] == {
        "path": "notes.txt",
        "kind": "file",
        "size_bytes": 1000,
        "modified_at": "2026-03-01T08:00:00Z",
    }
    view = await look(ada, "data")
    assert view["contents"] == found
    [snapshot] = view["snapshots"]
    assert found["snapshot_id"] == snapshot["snapshot_id"]
    of_snapshot = await ada.get(f"/v1/disks/data/contents?snapshot_id={snapshot['snapshot_id'][:6]}")
    assert of_snapshot.json() == found
    await ask(ada, "/data/snapshots")
    await machine.run()
    assert (await ada.get("/v1/disks/data/contents")).json() == found, "the one that was asked for has no listing yet"


async def test_what_is_under_way_is_in_the_way_of_another_request(ada: httpx2.AsyncClient) -> None:
    await create(ada)
    said = refused(await ada.post("/v1/disks/data/resize", json={"size_gb": 200}), 409, "conflict")
    assert "create is under way" in said
    view = await look(ada, "data")
    assert (view["state"], view["operation"]["kind"]) == ("busy", "create")


async def test_what_the_cloud_refuses_is_told_in_the_operation(ada: httpx2.AsyncClient, machine: Machine) -> None:
    await create(ada)
    await machine.stay(ada, "data", "draft")
    machine.cloud.trouble.errors["grow_volume"] = [ClusterError("the quota of the account is used up")] * 3
    asked = await ask(ada, "/data/resize", {"size_gb": 300})
    await machine.run()
    failed = (await ada.get(f"/v1/disks/data/operations/{asked['operation_id']}")).json()
    assert failed["state"] == "failed"
    assert "the quota of the account is used up" in failed["error"]
    assert (await look(ada, "data"))["size_gb"] == DiskSettings().default_size_gb


async def test_operations_and_names_that_are_none_are_refused(ada: httpx2.AsyncClient) -> None:
    asked = await create(ada)
    refused(await ada.get("/v1/disks/data/operations/zzzz"), 422, "invalid", "operation_id")
    refused(await ada.get("/v1/disks/data/operations/00000000"), 404, "not_found")
    refused(await ada.get(f"/v1/disks/other/operations/{asked['operation_id']}"), 404, "not_found")
    refused(await ada.get("/v1/disks/UPPER"), 422, "invalid", "disk_name")
    refused(await ada.get("/v1/disks?deletd=true"), 422, "invalid", "deletd")


async def test_where_there_are_no_disks_none_is_made(ada: httpx2.AsyncClient, api: Api) -> None:
    api.restart(settings=replace(api.services.settings, cluster="kubernetes"))
    client = await api.as_user("ada")
    said = refused(await client.post("/v1/disks", json={"disk_name": "data"}), 422, "invalid", "disk_name")
    assert "no disks" in said
    assert await names(client) == []
