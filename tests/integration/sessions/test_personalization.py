"""What people bring to their dev servers goes in through the API and comes out at the dev server alone."""

import json
from typing import Any

import asyncpg
import httpx2
import pytest

from gpudev.adapters.postgres.database.roles import API
from gpudev.domain.ids import ReservationId
from gpudev.ports.cluster import ServerPhase, ServerState
from support.api.harness import public_key
from support.processor_world import World

SECRET = "planted-4711"
BROUGHT: dict[str, Any] = {
    "environment": {"HF_TOKEN": SECRET, "LINES": f"one\n{SECRET}\n"},
    "dotfiles": "https://git.example.com/ada/dotfiles",
    "startup_script": f"#!/bin/sh\necho {SECRET}\n",
}


async def submit(client: httpx2.AsyncClient, **asked: Any) -> httpx2.Response:
    body = {"gpu_count": 1, "gpu_type": "h100", "ssh_public_keys": [public_key()], "disk_name": "none", **asked}
    headers = {"Idempotency-Key": asked.pop("key")} if "key" in asked else {}
    body.pop("key", None)
    return await client.post("/v1/jobs/submit", json=body, headers=headers)


async def test_the_dev_server_gets_all_of_it_and_no_answer_or_history_holds_any(
    ada: httpx2.AsyncClient, world: World, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = await submit(ada, **BROUGHT)
    assert answer.status_code == 202, answer.text
    await world.turn()
    (spec,) = world.cluster.specs.values()
    assert dict(spec.environment) == BROUGHT["environment"]
    assert (spec.dotfiles, spec.startup_script) == (BROUGHT["dotfiles"], BROUGHT["startup_script"])
    job = answer.json()["reservation_id"]
    told = [answer.text, repr(spec), caplog.text, *capfd.readouterr()]
    for path in (f"/v1/jobs/{job}", "/v1/jobs"):
        told.append((await ada.get(path)).text)
    events = await world.stores.reservations.events(spec.reservation_id)
    told.append(json.dumps([event.message for event in events]))
    assert not [text for text in told if SECRET in text]


async def test_it_is_forgotten_when_the_reservation_is_released(ada: httpx2.AsyncClient, world: World) -> None:
    job = (await submit(ada, **BROUGHT)).json()["reservation_id"]
    await world.turn()
    rid = next(iter(world.cluster.specs))
    assert not (await world.stores.personalizations.load_personalization(rid)).is_empty
    await ada.post(f"/v1/jobs/{job}/cancel")
    await world.turn()
    assert (await world.get(rid)).is_released
    assert (await world.stores.personalizations.load_personalization(rid)).is_empty


async def test_the_apis_role_can_write_it_and_never_read_it(
    ada: httpx2.AsyncClient, world: World, stores_of: Any
) -> None:
    await submit(ada, **BROUGHT)
    async with stores_of(API).pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(reservation_id) FROM reservation_setups") == 1
        for column in ("environment", "dotfiles", "startup_script", "*"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT {column} FROM reservation_setups")  # noqa: S608


async def test_a_repeated_request_keeps_one_setup_and_its_fingerprint_tells_nothing_of_the_values(
    ada: httpx2.AsyncClient, world: World
) -> None:
    first = await submit(ada, **BROUGHT, key="again")
    other = {**BROUGHT, "environment": {"HF_TOKEN": "another", "LINES": "others"}}
    again = await submit(ada, **other, key="again")
    assert again.json()["reservation_id"] == first.json()["reservation_id"]
    async with world.stores.pool.acquire() as connection:
        rows = await connection.fetch("SELECT environment FROM reservation_setups")
    assert [row["environment"] for row in rows] == [BROUGHT["environment"]]
    other_names = {**BROUGHT, "environment": {"OTHER": SECRET}}
    assert (await submit(ada, **other_names, key="again")).status_code == 409


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"environment": {"PATH": SECRET}}, "environment"),
        ({"environment": {"A": "\0" + SECRET}}, "environment"),
        ({"environment": {"A": 4711}}, "environment.A"),
        ({"dotfiles": f"https://ada:{SECRET}@git.example.com/x"}, "dotfiles"),
        ({"startup_script": f"\0{SECRET}"}, "startup_script"),
        ({"startup_script": SECRET * 10_000}, "startup_script"),
    ],
)
async def test_what_cannot_be_brought_is_refused_by_name_and_never_repeated(
    ada: httpx2.AsyncClient, world: World, asked: dict[str, Any], field: str
) -> None:
    answer = await submit(ada, **asked)
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert "4711" not in answer.text


async def test_what_became_of_it_is_told_once_and_a_failure_ends_nothing(ada: httpx2.AsyncClient, world: World) -> None:
    job = (await submit(ada, **BROUGHT)).json()["reservation_id"]
    await world.turn()
    rid: ReservationId = next(iter(world.cluster.specs))
    seen = world.cluster.servers[rid]
    words = "dotfiles: git clone ended with 128"
    world.cluster.servers[rid] = ServerState(rid, ServerPhase.READY, connection=seen.connection, setup_outcome=words)
    await world.turn()
    assert (await world.kinds(rid)).count("setup") == 1
    shown = (await ada.get(f"/v1/jobs/{job}")).json()
    assert (shown["status"], shown["setup_outcome"]) == ("active", words)
