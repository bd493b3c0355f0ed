"""Asking for a dev server: what is granted, what is told at once, and what is refused with which sentence."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest

from gpudev.adapters.postgres.reservations.reservation_store import PostgresReservations
from gpudev.domain import ids
from gpudev.domain.cluster import Node
from gpudev.domain.reservations.reservation import Reservation
from gpudev.planning.queue.start_quotes import LONG_QUEUE_AHEAD
from gpudev.ports.reservations import QueueAhead
from gpudev.settings import LimitSettings
from gpudev.workflows.reservations import submission
from support.api.harness import Api, identifier, public_key, refused, submit

NEVER: list[tuple[dict[str, Any], str]] = [
    ({"gpu_type": "h900"}, "gpu_type"),
    ({"gpu_type": ""}, "gpu_type"),
    ({"gpu_type": "H100'; DROP TABLE reservations; --"}, "gpu_type"),
    ({"gpu_type": "x" * 51}, "gpu_type"),
    ({"gpu_type": 7}, "gpu_type"),
    ({"gpu_count": 3}, "gpu_count"),
    ({"gpu_count": 0}, "gpu_count"),
    ({"gpu_count": -1}, "gpu_count"),
    ({"gpu_count": 65}, "gpu_count"),
    ({"gpu_count": 32}, "gpu_count"),
    ({"gpu_count": 10**40}, "gpu_count"),
    ({"gpu_count": 1.5}, "gpu_count"),
    ({"gpu_count": "2"}, "gpu_count"),
    ({"gpu_count": True}, "gpu_count"),
    ({"gpu_count": None}, "gpu_count"),
    ({"duration_hours": 0}, "duration_hours"),
    ({"duration_hours": -4}, "duration_hours"),
    ({"duration_hours": 24.01}, "duration_hours"),
    ({"duration_hours": 1e300}, "duration_hours"),
    ({"duration_hours": "four"}, "duration_hours"),
    ({"disk_name": "Not A Disk"}, "disk_name"),
    ({"disk_name": "../../etc"}, "disk_name"),
    ({"disk_name": ""}, "disk_name"),
    ({"name": "two\nlines"}, "name"),
    ({"name": "   "}, "name"),
    ({"name": "x" * 64}, "name"),
    ({"name": "red \x1b[31m"}, "name"),
    ({"image": "no spaces allowed"}, "image"),
    ({"image": "$(reboot)"}, "image"),
    ({"github_user": "-dash"}, "github_user"),
    ({"github_user": "a/../b"}, "github_user"),
    ({"github_user": "x" * 40}, "github_user"),
    ({"ssh_public_keys": ["not a key"]}, "ssh_public_keys"),
    ({"ssh_public_keys": ['command="reboot" ' + public_key()]}, "ssh_public_keys"),
    ({"ssh_public_keys": [public_key() + "\n" + public_key("eve")]}, "ssh_public_keys"),
    ({"ssh_public_keys": [public_key()] * 51}, "ssh_public_keys"),
    ({"ssh_public_keys": []}, "ssh_public_keys"),
    ({"ssh_public_keys": None}, "ssh_public_keys"),
    ({"ssh_public_keys": public_key()}, "ssh_public_keys"),
    ({"ssh_public_keys": [1]}, "ssh_public_keys[0]"),
    ({"gpus": 2}, "gpus"),
    ({"name": "nul\x00"}, "name"),
    ({"\x00": 1}, "\x00"),
    ({"ssh_public_keys": [{"deep": ["\x00"]}]}, "ssh_public_keys"),
]


async def test_what_is_asked_for_is_written_down_and_can_be_read_at_once(api: Api) -> None:
    api.restart(settings=replace(api.services.settings, cluster="kubernetes"))  # where an image means something
    ada = await api.as_user()
    view = await submit(ada, gpu_count=2, duration_hours=4, name="training run", image="pytorch/pytorch:2.8.0")
    assert view["status"] == "pending"
    assert (view["gpu_type"], view["gpu_count"], view["node_count"], view["duration_hours"]) == ("h100", 2, 1, 4.0)
    assert (view["name"], view["image"], view["user"]) == ("training run", "pytorch/pytorch:2.8.0", "ada")
    assert view["job_id"] == view["reservation_id"]
    assert view["pod_name"] == f"gpu-dev-{view['reservation_id'][:8]}"
    assert view["created_at"] == "2026-03-02T09:00:00Z"
    row = await api.world.get(identifier(view))
    assert row.ssh_public_keys == (public_key(),)
    answer = await ada.get(f"/v1/jobs/{view['reservation_id']}")
    assert answer.json()["status"] == "pending"


async def test_the_message_that_wakes_the_processor_is_sent_with_the_row(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    (message,) = await api.world.stores.message_queue.read("gpu_reservations", timedelta(0), 10)
    assert message.body["reservation_id"] == view["reservation_id"]


async def test_what_fits_now_is_first_in_line_and_waits_no_minute(ada: httpx2.AsyncClient) -> None:
    view = await submit(ada, gpu_count=8)
    assert (view["queue_position"], view["estimated_wait_minutes"]) == (1, 0)
    assert view["estimated_start_at"] == "2026-03-02T09:00:00Z"


async def test_what_does_not_fit_is_told_its_position_and_when_the_one_before_it_ends(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    await submit(ada, gpu_count=16, duration_hours=4)
    await api.world.turn()
    view = await submit(bob, gpu_count=1)
    assert view["queue_position"] == 1
    assert view["estimated_start_at"] == "2026-03-02T13:00:00Z"
    eta = view["eta"]
    assert (eta["latest"], eta["margin_seconds"], eta["confidence"]) == ("2026-03-02T13:00:30Z", 30.0, 0.8)
    assert "2026-03-02T09:00:00Z" <= eta["interval_from"] < eta["expected"] < eta["interval_to"] <= eta["latest"]
    assert 0 < view["estimated_wait_minutes"] < 240, "people leave early"
    assert view["wait_reason"]
    behind = await submit(ada, gpu_count=1)
    assert behind["queue_position"] == 2


async def test_the_place_told_at_submit_is_the_place_the_processor_writes(ada: httpx2.AsyncClient, api: Api) -> None:
    await submit(ada, gpu_count=16, duration_hours=2)
    await api.world.turn()
    told = await submit(ada, gpu_count=8)
    await api.world.turn()
    written = (await ada.get(f"/v1/jobs/{told['job_id']}")).json()
    assert written["status"] == "queued"
    for name in ("queue_position", "estimated_start_at", "estimated_wait_minutes"):
        assert told[name] == written[name]


async def test_in_a_long_line_the_answer_comes_from_the_published_plan(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    await submit(ada, gpu_count=16, duration_hours=1)
    await api.world.turn()
    for _ in range(LONG_QUEUE_AHEAD + 1):
        await api.world.submit(16, nodes=2, hours=1)
    await api.world.turn()
    first, second = await submit(bob, gpu_count=16), await submit(bob, gpu_count=16)
    assert [first["queue_position"], second["queue_position"]] == [LONG_QUEUE_AHEAD + 2, LONG_QUEUE_AHEAD + 3]
    assert f"{LONG_QUEUE_AHEAD + 1} reservations are ahead" in first["wait_reason"]
    answer = await bob.get("/v1/gpu/availability")
    (row,) = [row for row in answer.json()["gpu_types"] if row["gpu_type"] == "h100"]
    assert row["queue_length"] == LONG_QUEUE_AHEAD + 3
    await api.world.turn()
    for told in (first, second):
        written = (await bob.get(f"/v1/jobs/{told['job_id']}")).json()
        assert written["eta"]["latest"] <= told["eta"]["latest"], "the one that runs was still being prepared then"


async def test_without_a_type_the_only_one_that_has_nodes_is_taken(ada: httpx2.AsyncClient) -> None:
    view = await submit(ada, gpu_type=None)
    assert view["gpu_type"] == "h100"


async def test_without_a_type_several_that_have_nodes_are_listed(ada: httpx2.AsyncClient, api: Api) -> None:
    api.world.cluster.nodes += (Node("node-3", "a100", 8),)
    await api.world.turn(1)
    answer = await ada.post("/v1/jobs/submit", json={"ssh_public_keys": [public_key()]})
    detail = refused(answer, 422, "invalid", "gpu_type")
    assert "a100" in detail
    assert "h100" in detail


async def test_a_cpu_type_takes_no_gpus(ada: httpx2.AsyncClient, api: Api) -> None:
    api.world.cluster.nodes += (Node("cpu-1", "cpu-x86", 3),)
    await api.world.turn(1)
    view = await submit(ada, gpu_type="cpu-x86", gpu_count=0)
    assert (view["gpu_count"], view["queue_position"]) == (0, 1)
    answer = await ada.post(
        "/v1/jobs/submit", json={"gpu_type": "cpu-x86", "gpu_count": 1, "ssh_public_keys": [public_key()]}
    )
    refused(answer, 422, "invalid", "gpu_count")


async def test_what_can_never_run_is_refused_naming_the_field(
    ada: httpx2.AsyncClient, api: Api, subtests: pytest.Subtests
) -> None:
    for ask, field in NEVER:
        with subtests.test(ask=ask):
            body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], **ask}
            refused(await ada.post("/v1/jobs/submit", json=body), 422, "invalid", field)
    assert await api.services.reservations.unreleased() == []


async def test_without_any_key_both_ways_to_give_one_are_named(ada: httpx2.AsyncClient) -> None:
    detail = refused(await ada.post("/v1/jobs/submit", json={"gpu_type": "h100"}), 422, "invalid", "ssh_public_keys")
    assert "github_user" in detail
    assert "ssh_public_keys" in detail


async def test_the_keys_a_github_user_publishes_may_log_in(ada: httpx2.AsyncClient, api: Api) -> None:
    api.published.of["octocat"] = (public_key("laptop"), public_key("desktop"))
    view = await submit(ada, ssh_public_keys=None, github_user="octocat")
    assert view["github_user"] == "octocat"
    assert (await api.world.get(identifier(view))).ssh_public_keys == (public_key("laptop"), public_key("desktop"))
    answer = await ada.post("/v1/jobs/submit", json={"gpu_type": "h100", "github_user": "nobody"})
    refused(answer, 422, "invalid", "github_user")


async def test_given_keys_go_before_github_and_each_counts_once(ada: httpx2.AsyncClient, api: Api) -> None:
    keys = [public_key() + " ada@laptop", public_key(), public_key("second")]
    view = await submit(ada, ssh_public_keys=keys, github_user="octocat")
    assert api.published.asked == []
    assert (await api.world.get(identifier(view))).ssh_public_keys == (public_key(), public_key("second"))


async def test_github_is_not_asked_for_what_is_refused_anyway(ada: httpx2.AsyncClient, api: Api) -> None:
    await ada.post("/v1/jobs/submit", json={"gpu_type": "h100", "gpu_count": 3, "github_user": "octocat"})
    assert api.published.asked == []


async def test_a_named_disk_that_another_reservation_holds_is_a_conflict(ada: httpx2.AsyncClient) -> None:
    first = await submit(ada, disk_name="data")
    answer = await ada.post(
        "/v1/jobs/submit", json={"gpu_type": "h100", "disk_name": "data", "ssh_public_keys": [public_key()]}
    )
    assert first["reservation_id"][:8] in refused(answer, 409, "disk_held")


async def test_a_home_on_scratch_is_told_as_a_warning(ada: httpx2.AsyncClient) -> None:
    assert (await submit(ada, disk_name=None))["warning"] is None
    assert "scratch" in (await submit(ada, disk_name=None))["warning"]


async def test_a_home_on_scratch_names_the_reservation_that_has_the_disk(ada: httpx2.AsyncClient) -> None:
    first = await submit(ada, disk_name=None, name="train")
    second = await submit(ada, disk_name=None)
    reason = f"disk 'default' is in use by reservation {first['reservation_id'][:8]} (train)"
    assert (first["scratch_reason"], second["scratch_reason"]) == (None, reason)
    assert second["warning"].endswith(f"because {reason}")
    assert (await submit(ada, disk_name="none"))["scratch_reason"] is None


async def test_a_users_limits_are_told_as_such(ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api) -> None:
    limits = LimitSettings(max_queued_per_user=1, max_gpus_per_user=4)
    settings = replace(api.services.settings, limits=limits)
    api.restart(settings=settings)
    ada, bob = await api.as_user("ada"), await api.as_user("bob")
    await submit(ada, gpu_count=1)
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()]}
    answer = await ada.post("/v1/jobs/submit", json=body)
    refused(answer, 429, "limit_reached")
    assert answer.headers["retry-after"]
    await api.world.turn()
    refused(await ada.post("/v1/jobs/submit", json={**body, "gpu_count": 4}), 429, "limit_reached")
    refused(await ada.post("/v1/jobs/submit", json={**body, "gpu_count": 8}), 422, "invalid", "gpu_count")
    await submit(bob, gpu_count=4)


async def test_a_users_limits_hold_for_submits_at_the_same_moment(api: Api) -> None:
    api.restart(
        settings=replace(api.services.settings, limits=LimitSettings(max_queued_per_user=2, max_gpus_per_user=4))
    )
    ada = await api.as_user("ada")
    body = {"gpu_type": "h100", "gpu_count": 1, "ssh_public_keys": [public_key()], "disk_name": "none"}
    answers = await asyncio.gather(*(ada.post("/v1/jobs/submit", json=body) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [202] * 2 + [429] * 6
    assert len(await api.services.reservations.unreleased()) == 2


async def test_until_a_processor_has_looked_no_type_is_refused_for_want_of_nodes(
    ada: httpx2.AsyncClient, api: Api
) -> None:
    async with api.world.stores.pool.acquire() as connection:
        await connection.execute("DELETE FROM cluster_nodes")
    view = await submit(ada, gpu_type="t4")
    assert view["estimated_wait_minutes"] is None
    assert view["queue_position"] == 1


async def test_a_type_this_machine_does_not_have_is_refused(ada: httpx2.AsyncClient) -> None:
    answer = await ada.post("/v1/jobs/submit", json={"gpu_type": "t4", "ssh_public_keys": [public_key()]})
    assert "h100" in refused(answer, 422, "invalid", "gpu_type")


async def test_a_taken_short_id_is_drawn_again(ada: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = identifier(await submit(ada))
    twin = ids.ReservationId(UUID(int=taken.int ^ 1))  # the same first eight digits, so the same pod name
    drawn = [twin, ids.new_reservation_id()]
    monkeypatch.setattr(submission, "new_reservation_id", lambda: drawn.pop(0))
    view = await submit(ada)
    assert view["reservation_id"][:8] != str(taken)[:8]
    assert drawn == []


async def test_the_same_idempotency_key_gives_the_same_reservation(ada: httpx2.AsyncClient, api: Api) -> None:
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "none"}
    first = await ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "once"})
    again = await ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "once"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    assert again.json() == first.json()
    assert len(await api.services.reservations.unreleased()) == 1


async def test_a_repeated_request_is_answered_even_if_it_would_be_refused_by_now(
    ada: httpx2.AsyncClient, api: Api
) -> None:
    body = {"gpu_type": "h100", "github_user": "octocat", "disk_name": "data"}
    api.published.of["octocat"] = (public_key(),)
    first = await ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "once"})
    assert first.status_code == 202, first.text
    del api.published.of["octocat"]
    again = await ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "once"})
    assert again.json()["reservation_id"] == first.json()["reservation_id"]


async def test_an_idempotency_key_does_not_serve_for_two_different_requests(ada: httpx2.AsyncClient) -> None:
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()]}
    await ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "once"})
    answer = await ada.post("/v1/jobs/submit", json={**body, "gpu_count": 2}, headers={"Idempotency-Key": "once"})
    refused(answer, 409, "idempotency_mismatch")


async def test_two_users_idempotency_keys_are_their_own(ada: httpx2.AsyncClient, bob: httpx2.AsyncClient) -> None:
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()]}
    one = await ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "same"})
    other = await bob.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "same"})
    assert one.json()["reservation_id"] != other.json()["reservation_id"]


async def test_many_at_once_with_one_idempotency_key_make_one_reservation(ada: httpx2.AsyncClient, api: Api) -> None:
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()]}
    answers = await asyncio.gather(
        *(ada.post("/v1/jobs/submit", json=body, headers={"Idempotency-Key": "race"}) for _ in range(12))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["reservation_id"] for answer in answers}) == 1
    assert sum("idempotent-replay" not in answer.headers for answer in answers) == 1
    assert len(await api.services.reservations.unreleased()) == 1


async def test_an_idempotency_key_is_short_visible_ascii(ada: httpx2.AsyncClient, subtests: pytest.Subtests) -> None:
    body = {"gpu_type": "h100", "ssh_public_keys": [public_key()]}
    for key in ("", "x" * 256, "two words", "tab\there", "caf\u00e9"):
        with subtests.test(key=key):
            headers = {"Idempotency-Key": key.encode("latin-1")}
            answer = await ada.post("/v1/jobs/submit", json=body, headers=headers)  # type: ignore[arg-type]
            refused(answer, 422, "invalid", "Idempotency-Key")


@pytest.mark.parametrize("gpu_count", [1, 16])
async def test_one_that_a_processor_has_placed_before_the_answer_never_waits_for_itself(
    ada: httpx2.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch, gpu_count: int
) -> None:
    count_ahead = PostgresReservations.count_ahead

    async def after_the_processor(*arguments: Any) -> QueueAhead:
        await api.world.turn(1)
        return await count_ahead(*arguments)

    monkeypatch.setattr(PostgresReservations, "count_ahead", after_the_processor)
    view = await submit(ada, gpu_count=gpu_count)
    assert view["status"] in ("preparing", "active")
    assert (view["wait_reason"], view["queue_position"], view["eta"]) == (None, None, None)


async def test_one_that_was_cancelled_before_the_answer_is_answered_as_that(
    ada: httpx2.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_ahead = PostgresReservations.count_ahead

    async def after_the_cancel(store: PostgresReservations, reservation: Reservation, *others: Any) -> QueueAhead:
        await ada.post(f"/v1/jobs/{reservation.reservation_id}/cancel")
        return await count_ahead(store, reservation, *others)

    monkeypatch.setattr(PostgresReservations, "count_ahead", after_the_cancel)
    view = await submit(ada)
    assert (view["status"], view["outcome"], view["wait_reason"]) == ("cancelled", "cancelled", None)


async def test_an_image_is_refused_where_dev_servers_are_no_containers(ada: httpx2.AsyncClient, api: Api) -> None:
    body = {"gpu_type": "h100", "image": "python:3.12", "ssh_public_keys": [public_key()]}
    answer = await ada.post("/v1/jobs/submit", json=body)
    assert "leave it out" in refused(answer, 422, "image_unsupported", "image")
    assert await api.world.stores.reservations.unreleased() == []
