"""An ID token for a key, over the API: who gets one, once, and who does not."""

import asyncio
from dataclasses import replace

import httpx2
import jwt
import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.api.dependencies import ApiDependencies
from gpudev.domain.access.users import Role
from gpudev.ports.access import Person
from gpudev.settings import OidcSettings
from support.access.oidc_issuer import METADATA, Stranger, TestIssuer
from support.api.harness import refused
from support.clock import ManualClock

PATH = "/v1/auth/oidc-login"


@pytest.fixture
def oidc(issuer: TestIssuer) -> OidcSettings:
    return OidcSettings(issuer=issuer.address, client_id="gpu-dev", admin_groups=("gpu-admins",))


async def log_in(client: httpx2.AsyncClient, token: str, **more: str) -> httpx2.Response:
    return await client.post(PATH, json={"id_token": token, **more})


async def test_a_token_is_exchanged_for_a_key_that_ends(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    answer = await log_in(client, issuer.token(clock, nonce="n", groups=["gpu-admins"]), nonce="n")
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert (view["username"], view["role"]) == ("ada@example.org", "admin")
    assert view["expires_at"] is not None
    assert answer.headers["cache-control"] == "no-store"
    found = await stores.users.find_key(view["api_key"])
    assert found is not None
    assert found.user.role is Role.ADMIN


async def test_groups_are_looked_at_anew_at_every_login(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    await stores.users.add_user("root", Role.ADMIN)
    first = await log_in(client, issuer.token(clock, groups=["gpu-admins"], jti="1"))
    second = await log_in(client, issuer.token(clock, groups=["staff"], jti="2"))
    assert [answer.json()["role"] for answer in (first, second)] == ["admin", "user"]


async def test_a_group_that_was_emptied_leaves_the_last_admin_in_place(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    """And only the last: as soon as there is another, the directory's word counts."""

    async def role_of(name: str, jti: str, *groups: str) -> str:
        token = issuer.token(clock, sub=name, email=f"{name}@example.org", groups=list(groups), jti=jti)
        return str((await log_in(client, token)).json()["role"])

    assert [await role_of(name, name, "gpu-admins") for name in ("eve", "ada")] == ["admin", "admin"]
    both = await asyncio.gather(role_of("eve", "1"), role_of("ada", "2"))
    assert sorted(both) == ["admin", "user"]
    last = ("eve", "ada")[both.index("admin")]
    assert await role_of(last, "3") == "admin"
    await stores.users.add_user("root", Role.ADMIN)
    assert await role_of(last, "4") == "user"


async def test_a_token_is_good_once_even_at_the_same_moment(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock
) -> None:
    token = issuer.token(clock)
    answers = await asyncio.gather(*(log_in(client, token) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7
    assert "used already" in refused(await log_in(client, token), 401, "unauthenticated")
    # Another spelling of the same signature is the same token.
    assert (await log_in(client, token + "=")).status_code in (401, 422)


async def test_a_used_token_is_forgotten_only_when_it_has_ended(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    token = issuer.token(clock, exp=int(clock.now().timestamp()) + 60)
    assert (await log_in(client, token)).status_code == 200
    clock.move(seconds=119)
    refused(await log_in(client, token), 401, "unauthenticated")
    clock.move(hours=1)
    refused(await log_in(client, token), 401, "unauthenticated")
    await log_in(client, issuer.token(clock, jti="later"))
    async with stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM used_id_tokens") == 1


async def test_a_token_for_others_or_another_time_gets_nothing(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    for changes in (
        {"aud": "other-program"},
        {"iss": "https://elsewhere.example"},
        {"azp": "other-program"},
        {"exp": 1},
        {"nbf": 99_999_999_999},
        {"iat": 99_999_999_999},
        {"nonce": "other"},
    ):
        token = issuer.token(clock, **{"nonce": "n", **changes})
        refused(await log_in(client, token, nonce="n"), 401, "unauthenticated")
    assert await stores.users.list_users() == []
    assert (await log_in(client, issuer.token(clock, nonce="n"), nonce="n")).status_code == 200


async def test_a_strangers_token_gets_nothing(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stranger: Stranger
) -> None:
    for kid in ("first", "unknown"):
        token = jwt.encode(issuer.claims(clock), stranger.rsa, "RS256", {"kid": kid})
        refused(await log_in(client, token), 401, "unauthenticated")


async def test_what_was_brought_is_not_repeated_to_anybody(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    token = issuer.token(clock, aud="other-program", email="planted@example.org")
    answer = await log_in(client, token)
    said = answer.text + "".join(capsys.readouterr())
    assert token not in said
    assert token.split(".")[1] not in said


async def test_a_name_that_is_another_providers_is_not_given_away(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    await stores.accounts.enrol(Person("Ada@example.org", "aws", "1:ada"), came_from=None, now=clock.now())
    assert "taken" in refused(await log_in(client, issuer.token(clock)), 403, "forbidden")


async def test_a_name_that_was_made_here_is_not_given_away(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    await stores.users.add_user("ada@example.org", Role.ADMIN)
    refused(await log_in(client, issuer.token(clock)), 403, "forbidden")


async def test_the_same_name_with_another_subject_is_somebody_else(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock
) -> None:
    assert (await log_in(client, issuer.token(clock))).status_code == 200
    refused(await log_in(client, issuer.token(clock, sub="4567-mallory")), 403, "forbidden")


async def test_a_disabled_user_stays_out(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock, stores: Stores
) -> None:
    await log_in(client, issuer.token(clock))
    async with stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET is_active = false")
    assert "disabled" in refused(await log_in(client, issuer.token(clock, jti="2")), 403, "forbidden")


async def test_an_issuer_that_does_not_answer_is_no_reason_to_let_in(
    client: httpx2.AsyncClient, issuer: TestIssuer, clock: ManualClock
) -> None:
    issuer.instead[METADATA] = lambda: (500, "text/html", b"<html>")
    refused(await log_in(client, issuer.token(clock)), 503, "unavailable")


async def test_what_is_no_request_is_refused(client: httpx2.AsyncClient) -> None:
    for body in ({}, {"id_token": 7}, {"id_token": None}, {"id_token": "x", "key": "y"}, []):
        assert (await client.post(PATH, json=body)).status_code == 422


async def test_without_an_issuer_nobody_comes_in_this_way(
    services: ApiDependencies, issuer: TestIssuer, clock: ManualClock
) -> None:
    from gpudev.api.app import create_app

    transport = httpx2.ASGITransport(create_app(replace(services, oidc_login=None)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
        refused(await log_in(client, issuer.token(clock)), 403, "forbidden")


async def test_the_api_says_where_one_logs_in(client: httpx2.AsyncClient, issuer: TestIssuer) -> None:
    methods = {each["kind"]: each for each in (await client.get("/v1/auth/methods")).json()["methods"]}
    assert methods["oidc"]["issuer"] == issuer.address
    assert methods["oidc"]["client_id"] == "gpu-dev"
    assert "openid" in methods["oidc"]["scopes"]
    assert methods["oidc"]["client_secret"] is None
    assert "invitation" in methods
