"""Admins: users, roles, everybody's keys. What is taken away has ended within a second, in every API process."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import httpx2
import pytest

from gpudev.adapters.postgres.database.listener import PostgresAccessChanges, PostgresReservationChanges
from gpudev.adapters.postgres.database.roles import API
from gpudev.adapters.postgres.stores import Stores
from gpudev.api.app import create_app
from gpudev.domain.access.users import Role
from gpudev.http_edge.rate_limits import Rate, RequestLimits
from support.api.harness import Api, PublishedKeys, api_services, refused, submit
from support.polling import eventually_async


@pytest.fixture
async def root(api: Api) -> httpx2.AsyncClient:
    return await api.as_user("root", Role.ADMIN)


async def test_a_user_is_made_with_a_role_and_listed(root: httpx2.AsyncClient) -> None:
    made = await root.post("/v1/users", json={"username": "ada", "role": "operator"})
    assert (made.status_code, made.headers["location"]) == (201, "/v1/users/ada")
    assert made.json() == {"username": "ada", "role": "operator", "is_active": True, "email": None}
    refused(await root.post("/v1/users", json={"username": "ada"}), 409, "conflict")
    refused(await root.post("/v1/users", json={"username": "../ada"}), 422, "invalid", "username")
    refused(await root.post("/v1/users", json={"username": "bob", "role": "king"}), 422, "invalid", "role")
    assert [user["username"] for user in (await root.get("/v1/users")).json()["users"]] == ["ada", "root"]


async def test_a_new_role_holds_from_the_next_request_on(api: Api, root: httpx2.AsyncClient) -> None:
    ada = await api.as_user("ada")
    refused(await ada.get("/v1/users"), 403, "forbidden")
    assert (await root.post("/v1/users/ada/role", json={"role": "admin"})).json()["role"] == "admin"
    assert (await ada.get("/v1/users")).status_code == 200
    assert (await ada.post("/v1/users/root/role", json={"role": "user"})).json()["role"] == "user"
    refused(await root.get("/v1/users"), 403, "forbidden")


async def test_there_is_always_an_admin_left(root: httpx2.AsyncClient) -> None:
    refused(await root.post("/v1/users/root/disable"), 409, "conflict")
    refused(await root.post("/v1/users/root/role", json={"role": "user"}), 409, "conflict")
    refused(await root.post("/v1/users/nobody/disable"), 404, "not_found")


async def test_two_admins_who_disable_each_other_at_once_do_not_both_succeed(api: Api) -> None:
    ada, bob = await api.as_user("ada", Role.ADMIN), await api.as_user("bob", Role.ADMIN)
    answers = await asyncio.gather(ada.post("/v1/users/bob/disable"), bob.post("/v1/users/ada/disable"))
    assert sorted(answer.status_code for answer in answers)[0] == 200
    assert sum(user.is_active for user in await api.services.users.list_users()) == 1


async def test_who_is_disabled_is_out_and_gets_no_old_key_back(api: Api, root: httpx2.AsyncClient) -> None:
    ada = await api.as_user("ada")
    assert (await ada.get("/v1/jobs")).status_code == 200
    assert (await root.post("/v1/users/ada/disable")).json()["is_active"] is False
    refused(await ada.get("/v1/jobs"), 401, "unauthenticated")
    assert (await root.post("/v1/users/ada/enable")).json()["is_active"] is True
    refused(await ada.get("/v1/jobs"), 401, "unauthenticated")
    assert (await (await api.as_user("ada")).get("/v1/jobs")).status_code == 200


async def test_keys_are_listed_without_what_they_are_and_revoked_by_number(api: Api, root: httpx2.AsyncClient) -> None:
    secret = await api.secret("ada")
    ada = api.anonymous({"Authorization": f"Bearer {secret}"})
    (key,) = (await root.get("/v1/keys", params={"user": "ada"})).json()["keys"]
    assert key["key_prefix"] == secret[:16]
    assert secret not in (await root.get("/v1/keys")).text
    assert (await ada.get("/v1/jobs")).status_code == 200
    assert (await root.post(f"/v1/keys/{key['key_id']}/revoke")).json()["usable"] is False
    assert (await root.post(f"/v1/keys/{key['key_id']}/revoke")).json()["usable"] is False
    refused(await ada.get("/v1/jobs"), 401, "unauthenticated")
    assert (await root.get("/v1/keys", params={"user": "ada"})).json()["keys"] == []
    assert len((await root.get("/v1/keys", params={"user": "ada", "ended": "true"})).json()["keys"]) == 1
    refused(await root.get("/v1/keys", params={"user": "nobody"}), 404, "not_found")
    refused(await root.post("/v1/keys/999999/revoke"), 404, "not_found")


async def test_new_keys_are_given_only_so_often(api: Api) -> None:
    api.restart(request_limits=RequestLimits(rotations=Rate(2, 10)))
    client = await api.as_user("ada")
    for _ in range(2):
        secret = (await client.post("/v1/keys/rotate")).json()["api_key"]
        client = api.anonymous({"Authorization": f"Bearer {secret}"})
    answer = await client.post("/v1/keys/rotate")
    refused(answer, 429, "too_often")
    assert 1 <= int(answer.headers["retry-after"]) <= 6
    assert (await client.get("/v1/jobs")).status_code == 200, "it was not taken away"


@pytest.mark.parametrize("end", ["key", "user", "role"])
async def test_another_api_process_hears_of_it(api: Api, stores_of: Callable[[str], Stores], end: str) -> None:
    """Two API processes over one database; what happens in one, or on the server's console, ends in the other."""
    stores = stores_of(API)
    changes, access = PostgresReservationChanges(stores.pool.database), PostgresAccessChanges(stores.pool.database)
    services = api_services(stores, changes, PublishedKeys(), api.world.clock, api.world.settings)
    other = Api(replace(services, access_changes=access), api.world, api.published, create_app(services))
    other.restart()
    # To this one no time passes: what it remembers is forgotten for no other reason than that something was heard.
    other.app.state.guard.authentication._monotonic = lambda: 0.0
    access.start()
    await api.services.users.add_user("root", Role.ADMIN)  # so that ada is not the last
    secret = await api.secret("ada", Role.ADMIN)
    client = other.anonymous({"Authorization": f"Bearer {secret}"})
    await eventually_async(access.is_fresh)
    assert (await client.get("/v1/users")).status_code == 200
    assert len(other.app.state.guard.authentication._cached) == 1
    administration = api.world.stores.administration
    match end:
        case "key":
            await administration.revoke_key((await administration.list_keys("ada"))[0].key_id)
        case "user":
            await administration.set_active("ada", False)
        case "role":
            await administration.set_role("ada", Role.USER)

    async def refusal() -> int | None:
        status = (await client.get("/v1/users")).status_code
        return status if status != 200 else None

    assert await eventually_async(refusal) == (403 if end == "role" else 401)
    await client.aclose()
    await access.close()


@pytest.mark.slow
async def test_a_stream_ends_with_the_key_that_asked_for_it(api: Api, api_address: str) -> None:
    secret = await api.secret("ada")
    job = await submit(api.anonymous({"Authorization": f"Bearer {secret}"}))
    headers = {"Authorization": f"Bearer {secret}"}
    lines: list[str] = []
    async with (
        httpx2.AsyncClient(base_url=api_address) as client,
        client.stream("GET", f"/v1/jobs/{job['job_id']}/events", headers=headers, timeout=30) as answer,
    ):
        async for line in answer.aiter_lines():
            lines.append(line)
            if line == "event: job" and lines.count("event: job") == 1:
                administration = api.world.stores.administration
                await administration.revoke_key((await administration.list_keys("ada"))[0].key_id)
                api.app.state.guard.authentication.forget_user((await api.services.users.list_users())[0].user_id)
    assert lines.count("event: job") == 1, "it ended, although the reservation goes on"
