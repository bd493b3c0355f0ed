"""Looking at reservations: by id, by the beginning of an id, in pages; one's own and nobody else's."""

from typing import Any
from uuid import UUID

import httpx2
import pytest

from gpudev.domain.access.users import Role
from gpudev.domain.ids import ReservationId
from support.api.harness import Api, identifier, public_key, refused, submit

SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"status": "sleeping"}, "status[0]"),
    ({"limit": "0"}, "limit"),
    ({"limit": "201"}, "limit"),
    ({"limit": "many"}, "limit"),
    ({"limit": "9" * 5000}, "limit"),
    ({"gpu_type": "\x00"}, "gpu_type"),
    ({"gpu_type": "x" * 51}, "gpu_type"),
    ({"gpu_type": ""}, "gpu_type"),
    ({"created_after": "yesterday"}, "created_after"),
    ({"created_after": "2026-03-02"}, "created_after"),
    ({"created_after": "2026-03-02T10:00:00"}, "created_after"),
    ({"created_after": "1772445600"}, "created_after"),
    ({"created_after": "NaN"}, "created_after"),
    ({"created_after": "2026-02-30T10:00:00Z"}, "created_after"),
    ({"created_before": "0001-01-01T00:00:00+14:00"}, "created_before"),
    ({"created_before": "9999-12-31T23:59:59-14:00"}, "created_before"),
    ({"cursor": "x"}, "cursor"),
    ({"cursor": ""}, "cursor"),
    ({"cursor": "\x00"}, "cursor"),
    ({"cursor": "c2VxOjk5OTk5OTk5OTk5OTk5OTk5OTk5OTk"}, "cursor"),
    ({"cursor": "c2VxOuKCgQ"}, "cursor"),
    ({"all": "perhaps"}, "all"),
    ({"stauts": "active"}, "stauts"),
    ({"\x00": "1"}, "\x00"),
    ({"limit": ["1", "2"]}, "limit"),
]


async def list_ids(client: httpx2.AsyncClient, **params: Any) -> list[str]:
    answer = await client.get("/v1/jobs", params=params)
    assert answer.status_code == 200, answer.text
    return [job["reservation_id"] for job in answer.json()["jobs"]]


async def test_an_active_reservation_tells_how_to_get_in(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, gpu_count=2, duration_hours=4)
    await api.world.turn()
    view = (await ada.get(f"/v1/jobs/{view['job_id']}")).json()
    assert view["status"] == "active"
    assert view["ssh_command"] == f"ssh -p {view['node_port']} dev@127.0.0.1"
    assert (view["node_ip"], view["ssh_user"], view["ssh_host_key"]) == ("127.0.0.1", "dev", "ssh-ed25519 AAAA")
    assert view["expires_at"] == "2026-03-02T13:00:00Z"
    assert (view["queue_position"], view["estimated_wait_minutes"]) == (None, None)
    (share,) = view["nodes"]
    assert share["node"] in ("node-1", "node-2")
    assert (share["rank"], share["gpu_count"], len(share["gpu_indices"])) == (0, 2, 2)


async def test_an_ended_reservation_no_longer_tells_how_to_get_in(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    await api.world.turn()
    await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    view = (await ada.get(f"/v1/jobs/{view['job_id']}")).json()
    assert view["status"] == "cancelled"
    assert (view["ssh_command"], view["node_port"], view["warning"]) == (None, None, None)


async def test_the_wait_counts_down_by_the_clock_and_never_below_zero(ada: httpx2.AsyncClient, api: Api) -> None:
    await submit(ada, gpu_count=16, duration_hours=1)
    await api.world.turn()
    view = await submit(ada, gpu_count=1)
    await api.world.turn()
    waits = []
    for seconds in (0, 1, 59, 3480, 3600):
        api.world.clock.move(seconds=seconds)
        waits.append((await ada.get(f"/v1/jobs/{view['job_id']}")).json()["estimated_wait_minutes"])
    first, second, third, *late = waits
    assert first == second == third + 1 > 5
    assert late == [0, 0]


async def test_the_near_end_is_a_warning(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, duration_hours=1, disk_name="data")
    await api.world.turn()
    assert (await ada.get(f"/v1/jobs/{view['job_id']}")).json()["warning"] is None
    api.world.clock.move(minutes=31)
    assert "29 minutes" in (await ada.get(f"/v1/jobs/{view['job_id']}")).json()["warning"]


async def test_the_beginning_of_an_id_is_enough(ada: httpx2.AsyncClient) -> None:
    view = await submit(ada)
    whole = view["reservation_id"]
    for text in (whole, whole.upper(), whole.replace("-", ""), whole[:4], whole[:8], whole[:13], whole[:35]):
        answer = await ada.get(f"/v1/jobs/{text}")
        assert answer.json()["reservation_id"] == whole, text


async def test_an_ambiguous_beginning_names_the_candidates(ada: httpx2.AsyncClient, api: Api) -> None:
    from gpudev.workflows.reservations import submission

    views = []
    for tail in (1, 2):
        drawn = ReservationId(UUID(f"abcd{tail}000-0000-4000-8000-000000000000"))
        original, submission.new_reservation_id = submission.new_reservation_id, lambda drawn=drawn: drawn  # type: ignore[misc]
        try:
            views.append(await submit(ada))
        finally:
            submission.new_reservation_id = original
    detail = refused(await ada.get("/v1/jobs/abcd"), 409, "ambiguous_id")
    assert "abcd1000" in detail
    assert "abcd2000" in detail
    assert (await ada.get("/v1/jobs/abcd1")).json()["reservation_id"] == views[0]["reservation_id"]
    refused(await ada.post("/v1/jobs/abcd/cancel"), 409, "ambiguous_id")


async def test_what_is_no_id_is_refused_as_such(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    for text in ("abc", "zzzz", "abcd%00", "g" * 36, "a" * 37, "----", "a-b-c", "abcd'--", "%F0%9F%90%98"):
        with subtests.test(text=text):
            detail = refused(await ada.get(f"/v1/jobs/{text}"), 422, "invalid", "job_id")
            assert "hex digits" in detail
            refused(await ada.post(f"/v1/jobs/{text}/cancel"), 422, "invalid", "job_id")


async def test_what_another_user_has_does_not_exist(ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    await api.world.turn()
    missing = await bob.get("/v1/jobs/00000000-0000-4000-8000-000000000000")
    for text in (view["job_id"], view["job_id"][:8]):
        for answer in (
            await bob.get(f"/v1/jobs/{text}"),
            await bob.get(f"/v1/jobs/{text}/events"),
            await bob.post(f"/v1/jobs/{text}/cancel"),
            await bob.post(f"/v1/jobs/{text}/extend", json={"extension_hours": 1}),
        ):
            detail = refused(answer, 404, "not_found")
            assert detail == missing.json()["detail"].replace("00000000-0000-4000-8000-000000000000", text)
    assert await list_ids(bob) == []
    assert (await api.world.status(identifier(view))) == "active"


async def test_a_list_is_newest_first_and_comes_in_pages(ada: httpx2.AsyncClient) -> None:
    made = [(await submit(ada))["reservation_id"] for _ in range(5)]
    assert await list_ids(ada) == made[::-1]
    seen, cursor = [], None
    for expected in (2, 2, 1):
        answer = await ada.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        page = answer.json()
        assert len(page["jobs"]) == expected
        seen += [job["reservation_id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if expected == 2:
            await submit(ada)  # what comes meanwhile moves no page
    assert seen == made[::-1]
    assert cursor is None


async def test_a_full_last_page_has_no_next(ada: httpx2.AsyncClient) -> None:
    for _ in range(2):
        await submit(ada)
    assert (await ada.get("/v1/jobs", params={"limit": 2})).json()["next_cursor"] is None


async def test_a_list_is_filtered_by_status_type_and_time(ada: httpx2.AsyncClient, api: Api) -> None:
    first = (await submit(ada))["reservation_id"]
    await ada.post(f"/v1/jobs/{first}/cancel")
    api.world.clock.move(hours=1)
    second = (await submit(ada))["reservation_id"]
    await api.world.turn()
    third = (await submit(ada))["reservation_id"]
    assert await list_ids(ada, status="cancelled") == [first]
    assert await list_ids(ada, status=["active", "cancelled"]) == [second, first]
    assert await list_ids(ada, status="failed") == []
    assert await list_ids(ada, gpu_type="h100") == [third, second, first]
    assert await list_ids(ada, gpu_type="t4") == []
    assert await list_ids(ada, created_after="2026-03-02T10:00:00Z") == [third, second]
    assert await list_ids(ada, created_before="2026-03-02T10:00:00Z") == [first]
    assert await list_ids(ada, created_after="2026-03-02T12:00:00+02:00") == [third, second]


async def test_operators_see_everybodys_and_others_may_not_ask(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    made = [(await submit(client))["reservation_id"] for client in (ada, bob)]
    operator = await api.as_user("olga", Role.OPERATOR)
    assert await list_ids(operator) == []
    assert await list_ids(operator, all="true") == made[::-1]
    refused(await ada.get("/v1/jobs", params={"all": "true"}), 403, "forbidden")
    assert (await operator.get(f"/v1/jobs/{made[0][:8]}")).json()["user"] == "ada"
    answer = await operator.post(f"/v1/jobs/{made[0]}/cancel")
    assert answer.json()["status"] == "cancelled"
    events = await api.services.reservations.events(identifier(answer.json()))
    assert events[-1].message == "cancelled by olga"


async def test_a_filter_that_makes_no_sense_is_refused(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    for params, field in SENSELESS:
        with subtests.test(params=params):
            refused(await ada.get("/v1/jobs", params=params), 422, "invalid", field)


async def test_the_edges_of_time_can_be_asked_for(ada: httpx2.AsyncClient) -> None:
    for edge in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-03-02t10:00:00.123456789z"):
        assert await list_ids(ada, created_before=edge, created_after=edge) == []


async def test_no_answer_holds_a_public_key_of_its_user(ada: httpx2.AsyncClient) -> None:
    await submit(ada)
    assert public_key().split()[1] not in (await ada.get("/v1/jobs")).text


async def test_one_that_nobody_has_looked_at_says_so(ada: httpx2.AsyncClient, api: Api) -> None:
    """Otherwise it would be about to start for ever."""
    view = await submit(ada)
    path = f"/v1/jobs/{view['reservation_id']}"
    api.world.clock.move(seconds=20)
    assert "not examined by a processor" not in (await ada.get(path)).json()["warning"]
    api.world.clock.move(seconds=20)
    assert "not examined by a processor since" in (await ada.get(path)).json()["warning"]
    await api.world.turn()
    assert "not examined by a processor" not in (await ada.get(path)).json()["warning"]


async def test_one_in_a_queue_that_nobody_looks_at_any_more_says_so(ada: httpx2.AsyncClient, api: Api) -> None:
    """Its estimate is as old as the last look."""
    for _ in range(sum(node.units for node in api.world.cluster.nodes) // 8):
        await submit(ada, gpu_count=8)
    waiting = await submit(ada, gpu_count=8)
    await api.world.turn()
    path = f"/v1/jobs/{waiting['reservation_id']}"
    assert (await ada.get(path)).json()["status"] == "queued"
    api.world.clock.move(seconds=100)
    assert "nobody has looked" not in str((await ada.get(path)).json()["warning"])
    api.world.clock.move(seconds=30)
    assert "the queue was not examined since 09:00 UTC: " in (await ada.get(path)).json()["warning"]
    api.world.clock.move(seconds=24 * 3600)
    assert "the queue was not examined since 2026-03-02 09:00 UTC: " in (await ada.get(path)).json()["warning"]
    await api.world.turn()
    assert "nobody has looked" not in str((await ada.get(path)).json()["warning"])
