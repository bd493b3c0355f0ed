"""Availability and the cluster's state: the numbers people decide by."""

import asyncio
from typing import Any

import httpx2
import pytest

from gpudev.api.app import create_app
from gpudev.api.caching import CachedValue
from gpudev.domain.cluster import Node
from support.api.harness import Api, submit


async def available(api: Api, client: httpx2.AsyncClient, gpu_type: str = "h100") -> dict[str, Any]:
    api.app = create_app(api.services)  # nothing shared from before
    answer = await api.anonymous(dict(client.headers)).get("/v1/gpu/availability")
    assert answer.status_code == 200, answer.text
    (row,) = [row for row in answer.json()["gpu_types"] if row["gpu_type"] == gpu_type]
    found: dict[str, Any] = row
    return found


async def test_an_idle_cluster_has_everything_left(ada: httpx2.AsyncClient, api: Api) -> None:
    row = await available(api, ada)
    assert (row["total_cluster_gpus"], row["available_gpus"], row["max_reservable"]) == (16, 16, 16)
    assert (row["full_nodes_available"], row["running_instances"], row["max_per_node"]) == (2, 2, 8)
    assert (row["queue_length"], row["estimated_wait_minutes"], row["age_seconds"]) == (0, 0, 0.0)
    assert (row["latest_wait_minutes"], row["wait_reason"]) == (0, None)
    assert (row["multinode"], row["simulated"]) == (True, False)
    assert row["last_availability_update"] == "2026-03-02T09:00:00Z"


async def test_what_is_held_is_not_available_and_two_half_free_nodes_are_no_whole_one(
    ada: httpx2.AsyncClient, api: Api
) -> None:
    for gpus in (8, 4):
        await submit(ada, gpu_count=gpus)
        await api.world.turn()
    await submit(ada, gpu_count=4)
    row = await available(api, ada)
    assert (row["available_gpus"], row["max_reservable"], row["full_nodes_available"]) == (4, 4, 0)
    assert row["queue_length"] == 1
    assert row["latest_wait_minutes"] == 481
    assert 0 < row["estimated_wait_minutes"] < 480
    assert "0 of 1 GPU free" in row["wait_reason"]


async def test_a_full_cluster_tells_how_long_one_gpu_would_take(ada: httpx2.AsyncClient, api: Api) -> None:
    await submit(ada, gpu_count=16, duration_hours=3)
    await api.world.turn()
    row = await available(api, ada)
    assert (row["available_gpus"], row["latest_wait_minutes"]) == (0, 181)
    assert 0 < row["estimated_wait_minutes"] < 180, "people leave early"
    assert "first fit when reservation" in row["wait_reason"]


async def test_a_type_without_nodes_has_no_wait_that_could_be_told(ada: httpx2.AsyncClient, api: Api) -> None:
    row = await available(api, ada, "t4")
    assert (row["total_cluster_gpus"], row["estimated_wait_minutes"]) == (0, None)


async def test_a_cpu_type_counts_user_slots(ada: httpx2.AsyncClient, api: Api) -> None:
    api.world.cluster.nodes += (Node("cpu-1", "cpu-x86", 3, simulated=True),)
    await api.world.turn(1)
    for _ in range(3):
        assert (await available(api, ada, "cpu-x86"))["estimated_wait_minutes"] == 0
        await submit(ada, gpu_type="cpu-x86", gpu_count=0, duration_hours=1)
        await api.world.turn()
    row = await available(api, ada, "cpu-x86")
    assert (row["available_gpus"], row["latest_wait_minutes"], row["simulated"]) == (0, 61, True)


async def test_the_cluster_in_numbers(ada: httpx2.AsyncClient, api: Api) -> None:
    api.world.cluster.nodes += (Node("cpu-1", "cpu-x86", 3), Node("node-3", "h100", 8, ready=False))
    await api.world.turn(1)
    await submit(ada, gpu_count=8)
    await submit(ada, gpu_type="cpu-x86", gpu_count=0)
    await api.world.turn()
    await submit(ada, gpu_count=16)
    status = (await ada.get("/v1/cluster/status")).json()
    assert {node["name"] for node in status["nodes"]} == {"node-1", "node-2", "node-3", "cpu-1"}
    by_name = {node["name"]: node for node in status["nodes"]}
    assert (by_name["node-3"]["ready"], by_name["node-3"]["available_gpus"]) == (False, 0)
    assert (by_name["cpu-1"]["total_gpus"], by_name["cpu-1"]["used_gpus"]) == (3, 1)
    assert (status["total_gpus"], status["available_gpus"]) == (24, 8)
    assert (status["active_reservations"], status["preparing_reservations"], status["queued_reservations"]) == (2, 0, 1)
    assert status["processor"] == "alive"
    assert status["seen_at"] == "2026-03-02T09:00:00Z"


async def test_a_cluster_that_nobody_plans_says_so(ada: httpx2.AsyncClient, api: Api) -> None:
    async def nobody() -> bool:
        return False

    api.restart(is_planning=nobody)
    status = (await api.anonymous(dict(ada.headers)).get("/v1/cluster/status")).json()
    assert "no processor" in status["processor"]


async def test_many_who_ask_at_once_share_one_answer_for_a_moment() -> None:
    loads, seconds, gate = 0, 0.0, asyncio.Event()

    async def load() -> int:
        nonlocal loads
        loads += 1
        await gate.wait()
        return loads

    remembered = CachedValue(load, 0.5, lambda: seconds)
    asking = [asyncio.create_task(remembered.get_value()) for _ in range(10)]
    await asyncio.sleep(0)
    asking[0].cancel()
    gate.set()
    assert set(await asyncio.gather(*asking[1:])) == {1}
    seconds = 0.49
    assert await remembered.get_value() == 1
    seconds = 0.5
    assert await remembered.get_value() == 2


async def test_a_failure_is_not_shared_with_those_who_ask_later() -> None:
    answers: list[int | Exception] = [ValueError("away"), 5]

    async def load() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    remembered = CachedValue(load, 0.5)
    with pytest.raises(ValueError, match="away"):
        await remembered.get_value()
    assert await remembered.get_value() == 5
