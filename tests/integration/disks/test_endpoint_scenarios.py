"""Disks through the API from their making to their end: carried out by hand, looked at again."""

import httpx2
import pytest

from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import ClusterError
from support.api.disk_requests import Machine, ask, create, look, make_machine, names
from support.api.harness import Api, public_key, refused, submit


@pytest.fixture
def machine(api: Api) -> Machine:
    return make_machine(api)


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
    for one in (newest, oldest):
        chosen = (await ada.get(f"/v1/disks/data/contents?snapshot_id={one['snapshot_id']}")).json()
        assert chosen["is_latest"], "what was asked for stands in no other's place"
    assert (newest["usable"], newest["files"], newest["size_bytes"]) == (True, 2, 3000)
    asked = await ask(ada, "/data/restore", {"snapshot_id": oldest["snapshot_id"][:8]})
    assert (asked["kind"], asked["snapshot_id"]) == ("restore", oldest["snapshot_id"])
    await machine.run()
    assert await machine.content(ada, "data") == "draft 1"
    kept = (await ada.get("/v1/disks/data/snapshots")).json()["snapshots"]
    assert {newest["snapshot_id"], oldest["snapshot_id"]} <= {one["snapshot_id"] for one in kept}
    listed = (await ada.get("/v1/disks/data/contents")).json()
    assert listed["snapshot_id"] == oldest["snapshot_id"], "what is on it now is shown, not what was last kept"
    assert (await look(ada, "data"))["contents"] == listed


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
    assert "restore it first" in said


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
    assert "nothing to snapshot" in refused(await ada.post("/v1/disks/empty/snapshots"), 409, "conflict")


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


async def test_a_clone_that_failed_is_not_restored_in_place_of_a_disk_that_was_deleted(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    await create(ada)
    await machine.stay(ada, "data", "draft")
    await create(ada, "copy")
    await machine.stay(ada, "copy", "years of work")
    await ada.delete("/v1/disks/copy")
    await machine.run()
    machine.cloud.trouble.errors["ensure_volume"] = [ClusterError("the quota of the account is used up")] * 3
    asked = await ask(ada, "/data/clone", {"new_name": "copy"})
    await machine.run()
    failed = (await ada.get(f"/v1/disks/copy/operations/{asked['operation_id']}")).json()
    assert failed["state"] == "failed"
    listed = (await ada.get("/v1/disks?deleted=true")).json()["disks"]
    assert [(one["disk_name"], one["state"]) for one in listed] == [
        ("copy", "deleted"),
        ("copy", "failed"),
        ("data", "free"),
    ]
    await ask(ada, "/copy/restore", {})
    await machine.run()
    assert await machine.content(ada, "copy") == "years of work"
    assert await names(ada) == ["copy", "data"], "a failure is forgotten when there is a disk of that name"


async def test_a_disk_that_could_not_be_made_is_seen_as_failed_with_the_reason_for_some_days(
    ada: httpx2.AsyncClient, machine: Machine, api: Api
) -> None:
    await create(ada)
    await machine.stay(ada, "data", "draft")
    machine.cloud.trouble.errors["ensure_volume"] = [ClusterError("the quota of the account is used up")] * 3
    await ask(ada, "/data/clone", {"new_name": "copy"})
    await machine.run()
    assert await names(ada) == ["copy", "data"]
    view = await look(ada, "copy")
    assert (view["state"], view["is_deleted"], view["restorable_until"]) == ("failed", False, None)
    assert view["operation"]["error"] == "the quota of the account is used up"
    assert "clone failed: the quota of the account is used up" in [line["message"] for line in view["history"]]
    refused(await ada.delete("/v1/disks/copy"), 404, "not_found")
    api.world.clock.move(days=8)
    assert await names(ada) == ["data"]
    refused(await ada.get("/v1/disks/copy"), 404, "not_found")
