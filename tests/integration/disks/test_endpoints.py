"""Disks through the API: what is asked for, answered and refused."""

import asyncio
from dataclasses import replace
from uuid import UUID

import httpx2
import pytest

from gpudev.domain.disks.operations import DiskSettings, MakeReady
from gpudev.domain.ids import DiskId
from support.api.disk_requests import Machine, ask, create, look, make_machine, names
from support.api.harness import Api, identifier, public_key, refused, submit


@pytest.fixture
def machine(api: Api) -> Machine:
    return make_machine(api)


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


async def test_who_names_no_disk_and_may_have_no_more_gets_scratch_space(
    ada: httpx2.AsyncClient, machine: Machine
) -> None:
    for number in range(DiskSettings().max_per_user):
        await create(ada, f"d{number}", size_gb=1)
    job = await submit(ada, disk_name=None)
    assert job["disk_name"] is None
    assert "scratch" in job["warning"]
    assert "default" not in await names(ada)
    await machine.run()
    assert (await ada.delete("/v1/disks/d0")).status_code == 202
    assert (await submit(ada, disk_name=None))["disk_name"] == "default"


async def test_a_disk_that_a_submit_makes_counts_before_it_is_made(ada: httpx2.AsyncClient) -> None:
    limits = DiskSettings()
    await create(ada, "large", size_gb=limits.max_size_gb)
    room = limits.max_gb_per_user - limits.max_size_gb - limits.default_size_gb
    await create(ada, "larger", size_gb=room)
    await submit(ada, disk_name="queued")
    refused(await ada.post("/v1/disks", json={"disk_name": "small", "size_gb": 1}), 429, "limit_reached")
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "another"}
    refused(await ada.post("/v1/jobs/submit", json=body), 429, "limit_reached")
    assert (await submit(ada, disk_name=None))["disk_name"] is None


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
    ours = await machine.actor.request_operation(
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
