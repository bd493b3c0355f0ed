"""Cancelling and extending: done when answered, or refused with the reason."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from gpudev.domain.errors import Stale
from gpudev.domain.queue import MessageCause
from gpudev.domain.reservations.changes import Change
from gpudev.domain.reservations.reservation import Reservation
from support.api.harness import Api, identifier, refused, submit

SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({}, "extension_hours"),
    ({"extension_hours": None}, "extension_hours"),
    ({"extension_hours": "1"}, "extension_hours"),
    ({"extension_hours": True}, "extension_hours"),
    ({"extension_hours": 0}, "extension_hours"),
    ({"extension_hours": -1}, "extension_hours"),
    ({"extension_hours": 1, "until": "tomorrow"}, "until"),
]


async def test_a_waiting_reservation_is_cancelled_and_released_at_once(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, disk_name="data")
    api.world.clock.move(minutes=1)
    answer = await ada.post(f"/v1/jobs/{view['job_id'][:8]}/cancel")
    assert answer.status_code == 200
    ended = answer.json()
    assert ended["status"] == "cancelled"
    assert ended["cancelled_at"] == ended["reservation_ended"] == ended["released_at"] == "2026-03-02T09:01:00Z"
    assert (ended["queue_position"], ended["estimated_wait_minutes"], ended["wait_reason"]) == (None, None, None)
    assert (await api.world.kinds(identifier(view)))[-1] == "cancelled"
    again = await submit(ada, disk_name="data")
    assert again["disk_name"] == "data"


async def test_an_active_one_keeps_its_gpus_until_they_are_confirmed_gone(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, gpu_count=16)
    await api.world.turn()
    api.world.cluster.slow_to_go = True
    ended = (await ada.post(f"/v1/jobs/{view['job_id']}/cancel")).json()
    assert (ended["status"], ended["released_at"]) == ("cancelled", None)
    behind = await submit(ada, gpu_count=8)
    assert behind["status"] == "pending"
    assert behind["estimated_wait_minutes"] != 0
    api.world.cluster.slow_to_go = False
    await api.world.turn(5)
    assert (await ada.get(f"/v1/jobs/{view['job_id']}")).json()["released_at"] is not None
    assert (await ada.get(f"/v1/jobs/{behind['job_id']}")).json()["status"] == "active"


@pytest.mark.parametrize(("exit_code", "outcome"), [(0, "done"), (17, "exit 17")])
async def test_a_client_that_ran_a_command_says_how_it_ended(
    ada: httpx2.AsyncClient, api: Api, exit_code: int, outcome: str
) -> None:
    view = await submit(ada, command="python train.py")
    assert (view["command"], view["exit_code"], view["outcome"]) == ("python train.py", None, None)
    await api.world.turn()
    ended = (await ada.post(f"/v1/jobs/{view['job_id']}/cancel", json={"exit_code": exit_code})).json()
    assert (ended["status"], ended["exit_code"], ended["outcome"]) == ("cancelled", exit_code, outcome)
    told = await api.world.stores.reservations.events(identifier(view))
    assert told[-1].message == f"the command ended with exit code {exit_code}"


async def test_one_that_a_person_cancelled_says_that(ada: httpx2.AsyncClient) -> None:
    for body in (None, {}, {"exit_code": None}):
        view = await submit(ada, disk_name="none")
        ended = (await ada.post(f"/v1/jobs/{view['job_id']}/cancel", json=body)).json()
        assert (ended["exit_code"], ended["outcome"]) == (None, "cancelled")


@pytest.mark.parametrize("body", [{"exit_code": 256}, {"exit_code": -1}, {"exit_code": "0"}, {"exit": 0}])
async def test_an_end_that_cannot_be_is_refused(ada: httpx2.AsyncClient, body: dict[str, Any]) -> None:
    view = await submit(ada)
    refused(await ada.post(f"/v1/jobs/{view['job_id']}/cancel", json=body), 422, "invalid", *body)
    assert (await ada.get(f"/v1/jobs/{view['job_id']}")).json()["status"] == "pending"


async def test_an_extended_one_lasts_as_long_as_it_is_planned_to(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, gpu_count=1, duration_hours=4)
    await api.world.turn()
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 2})
    assert (view["duration_hours"], answer.json()["duration_hours"]) == (4.0, 6.0)


async def test_times_in_a_refusal_are_also_timestamps(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, gpu_count=1, duration_hours=4)
    await api.world.turn()
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 1000})
    (written, moment), *others = answer.json()["times"].items()
    assert written in refused(answer, 409, "conflict")
    assert written == moment.replace("T", " ").replace("Z", " UTC")
    assert others == []
    other = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 0})
    assert other.json()["times"] is None


async def test_cancelling_wakes_the_processor(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    await api.world.turn()
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    (message,) = await api.world.stores.message_queue.read("gpu_reservations", timedelta(0), 10)
    assert message.body == {
        "reservation_id": view["reservation_id"],
        "cause": MessageCause.CANCELLED.value,
        "request_id": answer.headers["x-request-id"],
    }


async def test_cancelling_twice_is_fine_and_changes_nothing(ada: httpx2.AsyncClient) -> None:
    view = await submit(ada)
    first = await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    second = await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    assert second.status_code == 200
    assert second.json() == first.json()


async def test_many_cancels_at_once_are_one_cancel(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    answers = await asyncio.gather(*(ada.post(f"/v1/jobs/{view['job_id']}/cancel") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert (await api.world.kinds(identifier(view))).count("cancelled") == 1


async def test_what_ended_otherwise_cannot_be_cancelled(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, duration_hours=1)
    await api.world.turn()
    api.world.clock.move(hours=2)
    await api.world.turn()
    assert "expired" in refused(await ada.post(f"/v1/jobs/{view['job_id']}/cancel"), 409, "conflict")


class Busy:
    """The real store, whose row the processor changes under the caller's hands as often as said."""

    def __init__(self, api: Api, times: int) -> None:
        self._real = api.services.reservations
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def apply_change(self, change: Change, **how: Any) -> Reservation:
        if self.times:
            self.times -= 1
            raise Stale("the reservation has changed meanwhile; try again")
        return await self._real.apply_change(change, **how)


async def test_a_reservation_that_moves_meanwhile_is_looked_at_again(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    api.restart(reservations=Busy(api, times=3))
    ada = await api.as_user("ada")
    assert (await ada.post(f"/v1/jobs/{view['job_id']}/cancel")).json()["status"] == "cancelled"


async def test_one_that_never_stands_still_is_a_conflict(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    api.restart(reservations=Busy(api, times=100))
    ada = await api.as_user("ada")
    refused(await ada.post(f"/v1/jobs/{view['job_id']}/cancel"), 409, "stale")


async def test_extending_moves_the_end_and_rearms_the_warnings(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, duration_hours=1)
    await api.world.turn()
    api.world.clock.move(minutes=50)
    await api.world.turn()
    assert (await api.world.get(identifier(view))).warned_minutes is not None
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 1.5})
    assert answer.status_code == 200, answer.text
    assert answer.json()["expires_at"] == "2026-03-02T11:30:00Z"
    row = await api.world.get(identifier(view))
    assert row.warned_minutes is None
    events = await api.services.reservations.events(identifier(view))
    assert (events[-1].kind, "1.5 hours" in events[-1].message) == ("extended", True)


async def test_extending_wakes_the_processor(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada)
    await api.world.turn()
    await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 1})
    (message,) = await api.world.stores.message_queue.read("gpu_reservations", timedelta(0), 10)
    assert message.body["cause"] == MessageCause.EXTENDED.value


async def test_only_an_active_one_can_be_extended(ada: httpx2.AsyncClient) -> None:
    view = await submit(ada)
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 1})
    assert "pending" in refused(answer, 409, "conflict")
    await ada.post(f"/v1/jobs/{view['job_id']}/cancel")
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 1})
    assert "cancelled" in refused(answer, 409, "conflict")


async def test_nobody_waiting_is_pushed_back_by_an_extension(
    ada: httpx2.AsyncClient, bob: httpx2.AsyncClient, api: Api
) -> None:
    view = await submit(ada, gpu_count=16, duration_hours=4)
    await api.world.turn()
    await submit(bob, gpu_count=16)
    await api.world.turn()
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 1})
    refused(answer, 409, "conflict")
    assert (await api.world.get(identifier(view))).expires_at is not None
    assert (await ada.get(f"/v1/jobs/{view['job_id']}")).json()["expires_at"] == "2026-03-02T13:00:00Z"


async def test_a_reservation_does_not_outgrow_the_longest_stay(ada: httpx2.AsyncClient, api: Api) -> None:
    view = await submit(ada, duration_hours=24)
    await api.world.turn()
    answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": 23})
    assert answer.status_code == 200, answer.text
    for hours in (2, 1e308):
        answer = await ada.post(f"/v1/jobs/{view['job_id']}/extend", json={"extension_hours": hours})
        assert "2026-03-04 09:00:00 UTC" in refused(answer, 409, "conflict")


async def test_an_extension_that_makes_no_sense_is_refused(
    ada: httpx2.AsyncClient, api: Api, subtests: pytest.Subtests
) -> None:
    view = await submit(ada)
    await api.world.turn()
    for body, field in SENSELESS:
        with subtests.test(body=body):
            refused(await ada.post(f"/v1/jobs/{view['job_id']}/extend", json=body), 422, "invalid", field)
