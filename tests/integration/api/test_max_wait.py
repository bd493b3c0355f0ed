"""A request that says how long it waits at most."""

from typing import Any

import pytest

from gpudev.domain.reservations.lifecycle import Status
from support.api.harness import Api, identifier, public_key, refused, submit


async def test_a_longest_wait_is_kept_told_and_in_the_end_obeyed(api: Api) -> None:
    client = await api.as_user()
    await submit(client, gpu_count=16)  # all there are
    view = await submit(client, gpu_count=8, max_wait_hours=2)
    assert view["wait_until"] == "2026-03-02T11:00:00Z"
    await api.world.turn()
    shown = (await client.get(f"/v1/jobs/{view['job_id']}")).json()
    assert (shown["status"], shown["wait_until"]) == ("queued", "2026-03-02T11:00:00Z")
    api.world.clock.move(hours=2)
    await api.world.turn()
    shown = (await client.get(f"/v1/jobs/{view['job_id']}")).json()
    assert (shown["status"], shown["wait_until"]) == ("cancelled", None)
    assert shown["failure_reason"] == "maximum wait of 2 hours reached"
    assert await api.world.status(identifier(view)) is Status.CANCELLED


async def test_without_one_it_waits_as_long_as_it_takes(api: Api) -> None:
    view = await submit(await api.as_user(), gpu_count=8)
    assert view["wait_until"] is None


@pytest.mark.parametrize("hours", [0, -1, 1e9, "2", True])
async def test_a_wait_that_makes_no_sense_is_refused(api: Api, hours: Any) -> None:
    client = await api.as_user()
    body = {"gpu_count": 1, "ssh_public_keys": [public_key()], "max_wait_hours": hours}
    refused(await client.post("/v1/jobs/submit", json=body), 422, "invalid", "max_wait_hours")
