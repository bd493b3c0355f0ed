"""The plan to look at, how good estimates were, and operators' priorities, as the API tells them."""

import asyncio
from datetime import timedelta

import httpx2

from gpudev.domain.access.users import Role
from support.api.harness import Api, identifier, refused, submit


async def test_the_plan_shows_every_node_over_time_and_who_starts_when(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    await submit(ada, gpu_count=8, duration_hours=2)
    await submit(ada, gpu_count=8, duration_hours=6)
    await api.world.turn()
    mine, theirs = await submit(bob, gpu_count=8, duration_hours=1), await submit(ada, gpu_count=8, duration_hours=1)
    await api.world.turn()
    plan = (await bob.get("/v1/cluster/plan", params={"hours": 4})).json()
    assert (plan["begins"], plan["until"]) == ("2026-03-02T09:00:00Z", "2026-03-02T13:00:00Z")
    (h100,) = plan["gpu_types"]
    steps = {node["name"]: [(step["at"][11:19], step["used_gpus"]) for step in node["steps"]] for node in h100["nodes"]}
    assert steps["node-2"] == [("09:00:00", 8)]
    assert steps["node-1"] == [("09:00:00", 8)], "one follows the other without a gap"
    first, second = h100["waiting"]
    assert (first["position"], first["mine"], first["reservation_id"]) == (1, True, mine["reservation_id"])
    assert (second["position"], second["mine"], second["reservation_id"]) == (2, False, None)
    assert first["nodes"] == ["node-1"]
    assert first["latest"] == "2026-03-02T11:00:30Z"
    assert first["expected"] < first["latest"]
    olga = await api.as_user("olga", Role.OPERATOR)
    seen = (await olga.get("/v1/cluster/plan", params={"gpu_type": "h100"})).json()["gpu_types"][0]
    assert seen["waiting"][1]["reservation_id"] == theirs["reservation_id"]
    assert (await olga.get("/v1/cluster/plan", params={"gpu_type": "t4"})).json()["gpu_types"] == []
    refused(await ada.get("/v1/cluster/plan", params={"hours": 0}), 422, "invalid", "hours")


async def test_estimates_are_judged_by_what_happened(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    first = await submit(ada, gpu_count=16, duration_hours=2)
    await api.world.turn()
    view = await submit(bob, gpu_count=16, duration_hours=2)
    await api.world.turn()
    api.world.clock.move(minutes=30)
    await ada.post(f"/v1/jobs/{first['job_id']}/cancel")
    await api.world.turn()
    answer = (await bob.get("/v1/stats/eta")).json()
    everything, h100 = answer["statistics"]
    assert (everything["gpu_type"], h100["gpu_type"]) == (None, "h100")
    assert (h100["started"], h100["latest_broken"], h100["confidence"]) == (1, 0, 0.8)
    told = abs(view["estimated_wait_minutes"] - 30)
    assert told - 1 <= h100["expected_error"]["median_minutes"] <= told + 1
    assert h100["latest_error"]["median_minutes"] == 90.5
    assert (await bob.get("/v1/stats/eta", params={"gpu_type": "t4"})).json()["statistics"] == []
    api.world.clock.move(days=8)
    (everything,) = (await bob.get("/v1/stats/eta", params={"days": 7})).json()["statistics"]
    assert everything["started"] == 0
    refused(await bob.get("/v1/stats/eta", params={"days": -1}), 422, "invalid", "days")


async def test_a_broken_promise_is_counted_for_everybody_and_named_to_operators(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    await submit(ada, gpu_count=16, duration_hours=2)
    await api.world.turn()
    view = await submit(bob, gpu_count=16)
    await api.world.turn()
    nodes, api.world.cluster.nodes = api.world.cluster.nodes, ()
    await api.world.turn()
    api.world.clock.move(hours=3)
    api.world.cluster.nodes = nodes
    await api.world.turn()
    answer = (await ada.get("/v1/stats/eta")).json()
    assert answer["statistics"][0]["latest_broken_by_cause"] == {"a node was lost": 1}
    assert answer["breaches"] == []
    olga = await api.as_user("olga", Role.OPERATOR)
    (breach,) = (await olga.get("/v1/stats/eta")).json()["breaches"]
    assert (breach["reservation_id"], breach["cause"]) == (view["reservation_id"], "a node was lost")


async def test_only_operators_set_priorities_and_only_of_those_who_wait(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    running = await submit(ada, gpu_count=16)
    await api.world.turn()
    first, second = await submit(ada, gpu_count=16), await submit(bob, gpu_count=16)
    await api.world.turn()
    path = f"/v1/jobs/{second['job_id']}/priority"
    refused(await bob.post(path, json={"priority": 1}), 403, "forbidden")
    olga = await api.as_user("olga", Role.OPERATOR)
    refused(await olga.post(path, json={"priority": 101}), 422, "invalid", "priority")
    refused(await olga.post(path, json={}), 422, "invalid", "priority")
    refused(await olga.post(f"/v1/jobs/{running['job_id']}/priority", json={"priority": 1}), 409, "conflict")
    answer = await olga.post(path, json={"priority": 5})
    assert (answer.status_code, answer.json()["priority"]) == (200, 5)
    assert (await olga.post(path, json={"priority": 5})).status_code == 200
    assert (await api.world.kinds(identifier(second))).count("priority") == 1
    await api.world.turn()
    assert (await bob.get(f"/v1/jobs/{second['job_id']}")).json()["queue_position"] == 1
    assert (await ada.get(f"/v1/jobs/{first['job_id']}")).json()["queue_position"] == 2


async def test_two_extensions_at_once_are_not_both_granted_when_only_one_can_be(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    """One who waits needs one node: either of the two may stay longer, but not both."""
    running = [await submit(ada, gpu_count=8, duration_hours=2) for _ in range(2)]
    await api.world.turn()
    waiting = await submit(bob, gpu_count=8)
    await api.world.turn()
    answers = await asyncio.gather(
        *(ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 2}) for view in running)
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    before = await api.world.latest_start(identifier(waiting))
    await api.world.turn()
    after = await api.world.latest_start(identifier(waiting))
    assert before is not None
    assert after is not None
    assert after <= before + timedelta(seconds=1)
    assert not (await api.world.kinds(identifier(waiting))).count("delayed")
