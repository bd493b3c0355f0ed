"""Two requests about one disk at the same moment: whatever the order, both are answered truly.

That one of two reservations wins a disk, a thousand times in a row, is tried on the store itself
(tests/contracts/disks).
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx2
import pytest

from gpudev.domain.disks.operations import DiskSettings
from support.api.harness import Api, public_key, refused

pytestmark = pytest.mark.slow
ROUNDS = 36


async def at_once(
    first: Coroutine[Any, Any, httpx2.Response], second: Coroutine[Any, Any, httpx2.Response], number: int
) -> tuple[httpx2.Response, httpx2.Response]:
    """Both, and in the course of many rounds each of them first: one begins a little later."""
    ahead = number % 12

    async def later(other: Coroutine[Any, Any, httpx2.Response]) -> httpx2.Response:
        await asyncio.sleep(ahead % 6 / 1000)
        return await other

    if ahead < 6:
        return await asyncio.gather(first, later(second))
    return await asyncio.gather(later(first), second)


async def reserve(client: httpx2.AsyncClient, disk: str) -> httpx2.Response:
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": disk}
    return await client.post("/v1/jobs/submit", json=body)


async def end(client: httpx2.AsyncClient, job: dict[str, Any]) -> None:
    """It still waits, so its disk is free this moment."""
    answer = await client.post(f"/v1/jobs/{job['job_id']}/cancel")
    assert answer.json()["released_at"] is not None, answer.text


async def finish_operations(api: Api) -> None:
    """What was asked for is done, without a cloud."""
    async with api.world.stores.pool.acquire() as connection:
        await connection.execute(
            "UPDATE disk_operations SET state = 'done', finished_at = now(), blocks = '{}' WHERE finished_at IS NULL"
        )


async def disks(client: httpx2.AsyncClient) -> dict[str, dict[str, Any]]:
    return {disk["disk_name"]: disk for disk in (await client.get("/v1/disks")).json()["disks"]}


async def test_one_of_two_reservations_gets_the_disk_and_the_other_learns_who_has_it(ada: httpx2.AsyncClient) -> None:
    for number in range(ROUNDS):
        answers = await at_once(reserve(ada, "data"), reserve(ada, "data"), number)
        won, lost = sorted(answers, key=lambda answer: answer.status_code)
        assert won.status_code == 202
        assert won.json()["reservation_id"][:8] in refused(lost, 409, "disk_held")
        assert (await disks(ada))["data"]["reservation_id"] == won.json()["reservation_id"]
        await end(ada, won.json())


async def test_a_disk_is_deleted_or_reserved_and_never_both(ada: httpx2.AsyncClient, api: Api) -> None:
    for number in range(ROUNDS):
        await ada.post("/v1/disks", json={"disk_name": "data", "size_gb": 1})
        await finish_operations(api)
        before = (await disks(ada))["data"]
        reserved, deleted = await at_once(reserve(ada, "data"), ada.delete("/v1/disks/data"), number)
        assert reserved.status_code == 202, reserved.text
        now = (await disks(ada))["data"]
        assert now["reservation_id"] == reserved.json()["reservation_id"]
        if deleted.status_code == 202:
            assert now["disk_id"] != before["disk_id"], "who came after the delete has a new one"
        else:
            assert reserved.json()["reservation_id"][:8] in refused(deleted, 409, "disk_held")
            assert now["disk_id"] == before["disk_id"]
        await end(ada, reserved.json())
        await finish_operations(api)
        await ada.delete("/v1/disks/data")
        await finish_operations(api)


async def test_a_disk_is_renamed_or_reserved_by_its_old_name_and_never_both(ada: httpx2.AsyncClient, api: Api) -> None:
    for number in range(ROUNDS):
        await ada.post("/v1/disks", json={"disk_name": "data", "size_gb": 1})
        await finish_operations(api)
        before = (await disks(ada))["data"]
        reserved, renamed = await at_once(
            reserve(ada, "data"), ada.post("/v1/disks/data/rename", json={"new_name": "other"}), number
        )
        assert reserved.status_code == 202, reserved.text
        now = await disks(ada)
        assert now["data"]["reservation_id"] == reserved.json()["reservation_id"]
        if renamed.status_code == 202:
            assert now["other"]["disk_id"] == before["disk_id"] != now["data"]["disk_id"]
            assert not now["other"]["in_use"]
        else:
            assert reserved.json()["reservation_id"][:8] in refused(renamed, 409, "disk_held")
            assert now.keys() == {"data"}
        await end(ada, reserved.json())
        await finish_operations(api)
        for name in now:
            await ada.delete(f"/v1/disks/{name}")
        await finish_operations(api)


async def test_a_name_is_given_by_a_rename_or_made_by_a_reservation_and_never_twice(
    ada: httpx2.AsyncClient, api: Api
) -> None:
    for number in range(ROUNDS):
        await ada.post("/v1/disks", json={"disk_name": "old", "size_gb": 1})
        await finish_operations(api)
        before = (await disks(ada))["old"]
        reserved, renamed = await at_once(
            reserve(ada, "new"), ada.post("/v1/disks/old/rename", json={"new_name": "new"}), number
        )
        assert reserved.status_code == 202, reserved.text
        now = await disks(ada)
        assert now["new"]["reservation_id"] == reserved.json()["reservation_id"]
        if renamed.status_code == 202:
            assert now.keys() == {"new"}
            assert now["new"]["disk_id"] == before["disk_id"]
        else:
            refused(renamed, 409, "conflict")
            assert now.keys() == {"new", "old"}
        await end(ada, reserved.json())
        await finish_operations(api)
        for name in now:
            await ada.delete(f"/v1/disks/{name}")
        await finish_operations(api)


async def test_disks_made_by_reserving_count_for_the_limit_also_at_the_same_moment(ada: httpx2.AsyncClient) -> None:
    most = DiskSettings().max_per_user
    for number in range(most - 2):
        await ada.post("/v1/disks", json={"disk_name": f"d{number}", "size_gb": 1})
    answers = await asyncio.gather(*(reserve(ada, f"new-{number}") for number in range(6)))
    assert sorted(answer.status_code for answer in answers) == [202, 202, 429, 429, 429, 429]
    for answer in answers:
        if answer.status_code == 429:
            assert str(most) in refused(answer, 429, "limit_reached")
    assert len(await disks(ada)) == most
    assert (await reserve(ada, "d0")).status_code == 202, "one that is there is no new one"
    assert (await reserve(ada, "none")).status_code == 202
