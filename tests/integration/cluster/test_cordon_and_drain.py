"""Operators close nodes: nothing new there, at once, and everybody can read why. What runs there goes on."""

import httpx2
import pytest

from gpudev.adapters.postgres.database.listener import Listener
from gpudev.adapters.postgres.queue.message_queue import QUEUE_INSERT_CHANNEL
from gpudev.domain.access.users import Role
from gpudev.domain.cluster import Node
from gpudev.domain.reservations.lifecycle import Status
from gpudev.ports.clock import Clock
from gpudev.workflows.cluster.drain import NodeDrain
from support.api.harness import Api, identifier, refused, submit
from support.polling import eventually_async


@pytest.fixture
async def olga(api: Api) -> httpx2.AsyncClient:
    return await api.as_user("olga", Role.OPERATOR)


async def close(olga: httpx2.AsyncClient, node: str, reason: str = "new driver") -> None:
    answer = await olga.post(f"/v1/cluster/nodes/{node}/cordon", json={"reason": reason})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["cordoned"], answer.json()["by"], answer.json()["reason"]) == (True, "olga", reason)


async def test_what_runs_on_a_closed_node_goes_on_and_nothing_new_starts_there(
    api: Api, ada: httpx2.AsyncClient, olga: httpx2.AsyncClient
) -> None:
    first = await submit(ada, gpu_count=4)
    await api.world.turn()
    (share,) = (await api.world.get(identifier(first))).shares
    other = {"node-1": "node-2", "node-2": "node-1"}[share.node]
    await close(olga, share.node)
    second = await submit(ada, gpu_count=4)
    await api.world.turn()
    assert [s.node for s in (await api.world.get(identifier(second))).shares] == [other]
    third = await submit(ada, gpu_count=8)
    await api.world.turn()
    assert (await api.world.get(identifier(third))).status.is_waiting
    assert await api.world.status(identifier(first)) is Status.ACTIVE
    assert (await olga.post(f"/v1/cluster/nodes/{share.node}/uncordon")).json()["cordoned"] is False
    await api.world.cancel(identifier(first))
    await api.world.turn()
    assert [s.node for s in (await api.world.get(identifier(third))).shares] == [share.node]


async def test_everybody_can_read_that_a_node_is_closed_and_why(
    api: Api, ada: httpx2.AsyncClient, olga: httpx2.AsyncClient
) -> None:
    await close(olga, "node-1")
    by_name = {node["name"]: node for node in (await ada.get("/v1/cluster/status")).json()["nodes"]}
    closed, still_open = by_name["node-1"], by_name["node-2"]
    assert (closed["schedulable"], closed["available_gpus"], closed["cordon_reason"]) == (False, 0, "new driver")
    assert (still_open["cordoned"], still_open["cordon_reason"]) == (False, None)
    types = (await ada.get("/v1/gpu/availability")).json()["gpu_types"]
    (h100,) = [one for one in types if one["gpu_type"] == "h100"]
    assert h100["closed_nodes"] == [{"name": "node-1", "reason": "new driver"}]
    assert h100["available_gpus"] == 8
    plan = (await ada.get("/v1/cluster/plan", params={"gpu_type": "h100"})).json()["gpu_types"][0]
    assert [(node["offers"], node["cordon_reason"]) for node in plan["nodes"]] == [
        (False, "new driver"),
        (True, None),
    ]
    await close(olga, "node-2", "")
    job = await submit(ada, gpu_count=1)
    await api.world.turn()
    row = await api.world.get(identifier(job))
    assert row.estimate is not None
    assert row.estimate.reason == "no h100 node is open for new work (new driver)"
    assert row.estimate.latest is None, "nothing is promised"


async def test_what_the_processor_writes_counts_no_closed_node(api: Api, olga: httpx2.AsyncClient) -> None:
    await close(olga, "node-1")
    await api.world.turn(1)
    (row,) = [row for row in await api.world.stores.catalogue.availability() if row.gpu_type == "h100"]
    assert row.available_gpus == 8
    assert (await olga.post("/v1/cluster/nodes/node-1/uncordon")).status_code == 200
    await api.world.turn(1)
    (row,) = [row for row in await api.world.stores.catalogue.availability() if row.gpu_type == "h100"]
    assert row.available_gpus == 16


async def test_a_node_that_is_away_can_be_closed_before_it_comes_back(api: Api, olga: httpx2.AsyncClient) -> None:
    there = api.world.cluster.nodes
    api.world.cluster.nodes = (there[1],)
    await api.world.turn(1)
    assert [away.name for away in await api.world.stores.cordons.list_absent_nodes()] == ["node-1"]
    await close(olga, "node-1")
    api.world.cluster.nodes = there
    await api.world.turn(1)
    nodes, _ = await api.world.stores.nodes.nodes()
    assert {node.name: node.offers for node in nodes} == {"node-1": False, "node-2": True}
    assert await api.world.stores.cordons.list_absent_nodes() == []


async def test_a_node_that_is_long_gone_is_forgotten(api: Api, olga: httpx2.AsyncClient) -> None:
    api.world.cluster.nodes += (Node("node-3", "h100", 8),)
    await api.world.turn(1)
    api.world.cluster.nodes = api.world.cluster.nodes[:2]
    await api.world.turn(1)
    api.world.clock.move(days=31)
    await api.world.turn(1)
    refused(await olga.post("/v1/cluster/nodes/node-3/cordon", json={}), 404, "not_found")


async def test_what_is_no_node_or_no_reason_is_refused(olga: httpx2.AsyncClient) -> None:
    assert "'nowhere'" in refused(await olga.post("/v1/cluster/nodes/nowhere/cordon", json={}), 404, "not_found")
    refused(await olga.post("/v1/cluster/nodes/nowhere/uncordon"), 404, "not_found")
    for reason in ("a\x1b[2Jb", "two\nlines", "x" * 201):
        answer = await olga.post("/v1/cluster/nodes/node-1/cordon", json={"reason": reason})
        refused(answer, 422, "invalid", "reason")
    refused(await olga.post("/v1/cluster/nodes/node%00-1/cordon", json={}), 422, "invalid", "name")
    assert (await olga.post("/v1/cluster/nodes/node-1/uncordon")).status_code == 200, "it is open already"


async def test_the_processor_hears_of_it_at_once(api: Api, olga: httpx2.AsyncClient) -> None:
    heard = 0

    def hear(_payload: str | None) -> None:
        nonlocal heard
        heard += 1

    listener = Listener(api.world.stores.pool.database, QUEUE_INSERT_CHANNEL, hear)
    listener.start()
    try:
        await eventually_async(lambda: heard == 1)  # it is connected
        await close(olga, "node-1")
        await eventually_async(lambda: heard == 2)
        await olga.post("/v1/cluster/nodes/node-1/uncordon")
        await eventually_async(lambda: heard == 3)
    finally:
        await listener.close()


async def test_it_is_in_the_audit_log(api: Api, olga: httpx2.AsyncClient) -> None:
    await close(olga, "node-1")
    root = await api.as_user("root", Role.ADMIN)
    entries = (await root.get("/v1/audit", params={"action": "cordon"})).json()["entries"]
    assert [(entry["username"], entry["target"]) for entry in entries] == [("olga", "node-1 (new driver)")]


async def test_a_drain_tells_those_who_are_there_once(api: Api, ada: httpx2.AsyncClient) -> None:
    world = api.world
    job = await submit(ada, gpu_count=16, duration_hours=20)
    await world.turn()
    clock: Clock = world.clock
    draining = NodeDrain(world.stores.cordons, world.stores.reservations, world.stores.unreleased, clock)
    (there,) = await draining.drain("node-2", "olga", "new driver")
    assert there.reservation_id == identifier(job)
    await world.turn()
    said = [message for told, message in world.cluster.told if told == identifier(job)]
    assert len(said) == 1
    assert said[0].startswith("node node-2 is needed empty (new driver)")
    assert said[0].endswith(", at the latest at 2026-03-03 05:00 UTC"), "the day, because it is not today"
    events = await world.stores.reservations.events(identifier(job))
    assert [event.message for event in events if event.kind == "node_draining"] == said
    assert await world.status(identifier(job)) is Status.ACTIVE
    await world.cancel(identifier(job))
    await world.turn()
    assert await draining.reservations_on("node-2") == []
