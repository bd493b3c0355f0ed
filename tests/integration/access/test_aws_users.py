"""Who somebody is after a login with AWS, what becomes of their keys, and what if AWS does not answer as it should."""

import asyncio
import os
import sys
from datetime import datetime, timedelta

import pytest

from gpudev.adapters.aws.login import AwsIdentityProvider
from gpudev.adapters.postgres.access.login import PostgresNonces
from gpudev.domain.access.users import Role
from gpudev.domain.errors import Conflict, NotFound, Unavailable
from support.access.aws_login_server import Place
from support.access.aws_signatures import ADA
from support.access.sts_stub import ROLE, Drip, Hang, Raw
from support.access.sts_stub.identities import assumed
from support.access.sts_stub.server import caller_identity
from support.api.harness import refused

# --- who is who ----------------------------------------------------------------------------------------------------


async def test_nobody_becomes_a_user_who_was_made_here(place: Place) -> None:
    await place.stores.users.add_user("ada", Role.ADMIN)
    assert "taken" in refused(await place.log_in(ADA), 403, "forbidden")
    assert (await place.row("ada"))["identity_subject"] is None


async def test_nobody_becomes_a_user_of_nearly_their_name(place: Place) -> None:
    await place.stores.users.add_user("Ada", Role.ADMIN)
    refused(await place.log_in(ADA), 403, "forbidden")


async def test_nobody_becomes_somebody_elses_namesake(place: Place) -> None:
    assert (await place.log_in(ADA)).status_code == 200
    for other in (assumed(ROLE, "ada"), assumed(ROLE, "ADA")):
        assert "taken" in refused(await place.log_in(other), 403, "forbidden")


async def test_an_operator_may_let_a_user_who_was_made_here_log_in_with_aws(place: Place) -> None:
    await place.stores.users.add_user("ada", Role.OPERATOR)
    with pytest.raises(NotFound):
        await place.stores.accounts.expect_login("eve", "aws")
    await place.stores.accounts.expect_login("ada", "aws")
    view = (await place.log_in(ADA)).json()
    assert (view["username"], view["role"]) == ("ada", "operator")
    with pytest.raises(Conflict):
        await place.stores.accounts.expect_login("ada", "oidc")
    refused(await place.log_in(assumed(ROLE, "ada")), 403, "forbidden")


@pytest.mark.slow
async def test_the_operators_command_says_so(place: Place) -> None:
    await place.stores.users.add_user("ada", Role.USER)
    database = place.stores.pool.database
    env = {n: v for n, v in os.environ.items() if not n.startswith(("GPU_DEV_", "POSTGRES_"))} | {
        "POSTGRES_HOST": database.host,
        "POSTGRES_PORT": str(database.port),
        "POSTGRES_USER": database.user,
        "POSTGRES_DB": database.database,
    }
    command = [sys.executable, "-m", "gpudev.main", "users", "let-in", "ada", "aws"]
    process = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 0, said
    assert (await place.log_in(ADA)).status_code == 200


async def test_a_role_that_was_given_here_stays(place: Place) -> None:
    await place.log_in(ADA)
    async with place.stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET role = 'operator'")
    assert (await place.log_in(ADA)).json()["role"] == "operator"


async def test_a_disabled_user_is_refused_and_nothing_of_theirs_changes(place: Place) -> None:
    await place.log_in(ADA)
    async with place.stores.pool.acquire() as connection:
        await connection.execute("UPDATE api_users SET is_active = false")
    before = await place.row("ada")
    place.clock.move(seconds=30)
    assert "disabled" in refused(await place.log_in(ADA), 403, "forbidden")
    assert await place.row("ada") == before


# --- keys ----------------------------------------------------------------------------------------------------------


async def test_logging_out_ends_the_key_at_once_and_no_other(place: Place) -> None:
    here, there = [(await place.log_in(ADA)).json()["api_key"] for _ in range(2)]
    gone = await place.client.delete("/v1/keys/current", headers={"Authorization": f"Bearer {here}"})
    assert (gone.status_code, gone.content) == (204, b"")
    assert [await place.ask(here), await place.ask(there)] == [401, 200]


async def test_rotating_a_key_from_a_login_buys_no_time(place: Place) -> None:
    first = (await place.log_in(ADA)).json()
    async with place.stores.pool.acquire() as connection:
        ends = await connection.fetchval(
            "UPDATE api_keys SET expires_at = expires_at - interval '90 minutes' RETURNING expires_at"
        )
    answer = await place.client.post("/v1/keys/rotate", headers={"Authorization": f"Bearer {first['api_key']}"})
    assert datetime.fromisoformat(answer.json()["expires_at"]) == ends
    assert [await place.ask(first["api_key"]), await place.ask(answer.json()["api_key"])] == [401, 200]


# --- when AWS does not answer as it should -------------------------------------------------------------------------


STRANGERS = [
    Raw(b"<html><body>Please log in to the network</body></html>", content_type="text/html"),
    Raw(b"<html><body>Please log in to the network</body></html>"),
    Raw(b""),
    Raw(caller_identity(ADA).encode()[:-30]),
    Raw(caller_identity(ADA).encode(), 302, headers=(("Location", "https://evil.example/"),)),
    Raw(b"", 307, headers=(("Location", "/again"),)),
    Raw(b"oops", 500, "text/plain"),
    Raw(b"oops", 503, "text/plain"),
    Raw(b"x" * 70_000),
    Raw(caller_identity(ADA).encode() + b" " * 70_000),
    Raw(caller_identity(ADA).encode("utf-16-le")),
    Raw(caller_identity(ADA).encode(), content_type="application/json"),
    Raw(b"\x1f\x8b" + b"0" * 30, headers=(("Content-Encoding", "gzip"),)),
]


async def test_whatever_answers_in_awss_place_lets_nobody_in(place: Place, subtests: pytest.Subtests) -> None:
    for number, answer in enumerate(STRANGERS, start=1):
        place.sts.misbehaviour = answer
        with subtests.test(status=answer.status, body=answer.body[:60]):
            detail = refused(await place.log_in(ADA), 503, "unavailable")
            assert "evil" not in detail
            assert len(place.sts.requests) == number, "no redirect is followed, nothing is tried twice"
    assert await place.users() == []


async def test_a_slow_answer_is_given_up_in_time(place: Place) -> None:
    soon = timedelta(seconds=0.3)
    aws = AwsIdentityProvider(place.services.settings, place.stores.nonces, place.clock, soon)
    for misbehaviour in (Hang(), Drip(0.05)):
        place.sts.misbehaviour = misbehaviour
        with pytest.raises(Unavailable, match="does not answer"):
            await aws.identify((await place.draft()).sign())
    await aws.close()


async def test_nobody_there_is_no_refusal(place: Place) -> None:
    await place.sts.close()
    refused(await place.log_in(ADA), 503, "unavailable")


async def test_nonces_are_bounded_and_forgotten_in_time(place: Place) -> None:
    nonces = place.services.nonces
    assert isinstance(nonces, PostgresNonces)
    nonces._limit = 3
    for _ in range(3):
        await place.nonce()
    refused(await place.client.post("/v1/auth/nonce"), 429, "limit_reached")
    place.clock.move(minutes=2)
    await place.nonce()
    async with place.stores.pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM login_nonces") == 1
