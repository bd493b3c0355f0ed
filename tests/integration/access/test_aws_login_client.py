"""`gpu-dev login` with the real AWS library, against the real API, behind which a token service checks signatures."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from pathlib import Path
from typing import Any

import click
import prompt_toolkit
import pytest
import questionary
import wcwidth

from gpudev import AsyncGpuDev, Unauthenticated
from gpudev.cli import overview
from support.access.aws_login_server import Served
from support.access.aws_signatures import ADA
from support.access.sts_stub import ROLE, Identity, Raw, single_sign_on
from support.access.sts_stub.credential_sources import SSO_TOKEN, CredentialGiver
from support.access.sts_stub.identities import assumed
from support.api.harness import public_key
from support.client.cli_process import Cli, Completed

pytestmark = pytest.mark.slow
Env = dict[str, str | None]


@pytest.fixture
def cli(tmp_path: Path, served: Served) -> Cli:
    """Somebody's laptop: the API's address is set, AWS's is not, and there is no way to the real one."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519.pub").write_text(public_key() + "\n")
    return Cli(
        home, env={"GPU_DEV_API_URL": served.url, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-2"}
    )


def of(identity: Identity) -> Env:
    """Credentials in the environment."""
    return {
        "AWS_ACCESS_KEY_ID": identity.access_key,
        "AWS_SECRET_ACCESS_KEY": identity.secret,
        "AWS_SESSION_TOKEN": identity.token,
    }


async def run(cli: Cli, *arguments: str, env: Env | None = None) -> Completed:
    return await asyncio.to_thread(cli.run, *arguments, env=env)


def kept(cli: Cli, served: Served) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((cli.home / ".gpu-dev" / "credentials").read_text())[served.url]
    return entry


def profile(cli: Cli, identity: Identity, name: str = "gpu") -> None:
    """A profile whose credentials another program gives."""
    given = {
        "Version": 1,
        "AccessKeyId": identity.access_key,
        "SecretAccessKey": identity.secret,
        "SessionToken": identity.token,
        "Expiration": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
    }
    folder = cli.home / ".aws"
    folder.mkdir(exist_ok=True)
    (folder / "given.json").write_text(json.dumps(given))
    (folder / "config").write_text(
        f"[profile {name}]\nregion = us-east-2\ncredential_process = cat {folder / 'given.json'}\n"
    )


async def test_logging_in_with_credentials_of_the_environment(cli: Cli, served: Served) -> None:
    done = await run(cli, "login", env=of(ADA))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Logged in to {served.url} as ada.\n"
    entry = kept(cli, served)
    assert (entry["username"], entry["login"]) == ("ada", {"method": "aws"})
    assert (cli.home / ".gpu-dev" / "credentials").stat().st_mode & 0o777 == 0o600
    listed = await run(cli, "list")
    assert listed.returncode == 0, listed.stderr
    assert len(served.sts.requests) == 1
    # What left this machine:
    assert served.requests("/v1/auth/aws-login")
    assert ADA.secret not in "".join(served.arrived) + str(served.sts.requests)
    assert ADA.secret not in (cli.home / ".gpu-dev" / "credentials").read_text()


async def test_a_profile_is_remembered_and_used_again_when_the_key_ends(cli: Cli, served: Served) -> None:
    profile(cli, ADA)
    assert (await run(cli, "login", "--profile", "gpu")).returncode == 0
    first = kept(cli, served)
    assert first["login"] == {"method": "aws", "profile": "gpu"}
    await served.end_keys()
    done = await run(cli, "list")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    second = kept(cli, served)
    assert second["api_key"] != first["api_key"]
    assert second["login"] == first["login"]


async def test_a_program_gets_its_next_key_by_itself_and_once_for_all_that_ask(cli: Cli, served: Served) -> None:
    profile(cli, ADA)
    assert (await run(cli, "login", "--profile", "gpu")).returncode == 0
    first, asked = kept(cli, served)["api_key"], len(served.sts.requests)
    async with AsyncGpuDev(env=cli.environment()) as client:
        assert await client.jobs.list() == []
        await served.end_keys()
        assert await asyncio.gather(*(client.jobs.list() for _ in range(5))) == [[]] * 5
        assert kept(cli, served)["api_key"] != first
        assert len(served.sts.requests) == asked + 1
        assert (await run(cli, "login", "--again")).stdout == f"Logged in to {served.url} as ada.\n"
        (cli.home / ".aws" / "config").unlink()
        await served.end_keys()
        with pytest.raises(Unauthenticated):
            await client.jobs.list()


async def test_a_long_reserve_lives_through_the_end_of_several_keys(cli: Cli, served: Served) -> None:
    env = of(ADA)
    assert (await run(cli, "login", env=env)).returncode == 0
    process = cli.start("reserve", "--gpus", "1", "--type", "h100", "--disk", "none", env=env)
    try:
        await served.until(lambda: any("/events " in line for line in served.arrived), "it follows its reservation")
        used = {kept(cli, served)["api_key"]}
        for trouble in (None, Raw(b"oops", 503, "text/plain")):
            served.sts.misbehaviour, asked = trouble, len(served.sts.requests)
            await served.end_keys()
            served.cut_connections()
            if trouble is not None:
                await served.until(lambda asked=asked: len(served.sts.requests) > asked + 1, "it asks again")  # type: ignore[misc]
                served.sts.misbehaviour = None
            await served.until(lambda: kept(cli, served)["api_key"] not in used, "it gets another key")
            used.add(key := kept(cli, served)["api_key"])
            await served.until(lambda key=key: served.is_followed(key), "it follows on with it")  # type: ignore[misc]
        job = json.loads((await run(cli, "list", "--json")).stdout)["jobs"][0]["reservation_id"]
        assert (await run(cli, "cancel", job, "--yes")).returncode == 0
        out, err = await asyncio.to_thread(process.communicate, timeout=60)
    finally:
        process.kill()
    assert process.returncode == 6, out + err
    assert "cancelled" in err
    assert kept(cli, served)["api_key"] == key


async def test_a_reserve_that_cannot_go_on_by_itself_says_that_the_reservation_stays(cli: Cli, served: Served) -> None:
    assert (await run(cli, "login", env=of(ADA))).returncode == 0
    process = cli.start("reserve", "--gpus", "1", "--type", "h100", "--disk", "none", env=of(ADA))
    try:
        await served.until(lambda: any("/events " in line for line in served.arrived), "it follows its reservation")
        served.sts.identities.clear()
        await served.end_keys()
        served.cut_connections()
        _, err = await asyncio.to_thread(process.communicate, timeout=60)
    finally:
        process.kill()
    assert process.returncode == 3
    assert "is unchanged" in err


async def test_whoever_has_become_somebody_else_is_not_carried_on_as_them(cli: Cli, served: Served) -> None:
    eve = single_sign_on("eve")
    served.sts.know(eve)
    assert (await run(cli, "login", env=of(ADA))).returncode == 0
    before = kept(cli, served)
    await served.end_keys()
    done = await run(cli, "list", env=of(eve))
    assert done.returncode == 3
    assert "eve" in done.stderr
    assert "gpu-dev login" in done.stderr
    assert kept(cli, served) == before
    async with served.stores.pool.acquire() as connection:
        eves = (
            "SELECT count(*) FROM api_keys JOIN api_users USING (user_id) WHERE username = 'eve' AND api_keys.is_active"
        )
        assert await connection.fetchval(eves) == 0, "what was got by mistake is given back"


async def test_when_aws_wants_the_person_it_is_said(cli: Cli, served: Served) -> None:
    assert (await run(cli, "login", env=of(ADA))).returncode == 0
    await served.end_keys()
    served.sts.identities.clear()
    done = await run(cli, "list", env=of(ADA))
    assert done.returncode == 3
    assert "InvalidClientTokenId" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-users-own"},
        {"AWS_PROFILE": "not-there"},
    ],
    ids=["none", "a user's", "of no profile"],
)
async def test_without_a_roles_credentials_nothing_is_sent(cli: Cli, served: Served, env: Env) -> None:
    done = await run(cli, "login", env=env)
    assert done.returncode == 3
    assert ROLE in done.stderr or "not-there" in done.stderr
    assert not served.requests("/v1/auth/nonce")


async def test_another_role_is_told_which_one_is_needed(cli: Cli, served: Served) -> None:
    eve = assumed("ReadOnly", "eve")
    served.sts.know(eve)
    done = await run(cli, "login", "--method", "aws", env=of(eve))
    assert done.returncode == 3
    assert ROLE in done.stderr
    assert not (cli.home / ".gpu-dev").exists()


class TestWhenTheServerIsSomebodyElse:
    @pytest.fixture
    def names(self) -> list[str]:
        return ["gpu.example.com"]

    async def test_nothing_is_signed_for_it(self, cli: Cli, served: Served) -> None:
        """It says that it is gpu.example.com; what is signed for it could be used there."""
        done = await run(cli, "login", env=of(ADA))
        assert done.returncode == 3
        assert "gpu.example.com" in done.stderr
        assert [line.split(" ")[1] for line in served.arrived] == ["/v1/auth/methods"]


async def test_logging_out_ends_the_key_everywhere(cli: Cli, served: Served) -> None:
    await run(cli, "login", env=of(ADA))
    key = kept(cli, served)["api_key"]
    done = await run(cli, "logout")
    assert (done.returncode, done.stdout) == (0, f"Logged out of {served.url}.\n")
    assert json.loads((cli.home / ".gpu-dev" / "credentials").read_text()) == {}
    assert await served.stores.users.find_key(key) is None
    again = await run(cli, "list", env=of(ADA))
    assert again.returncode == 3, "who has logged out is not logged in again by itself"
    assert "gpu-dev login" in again.stderr
    assert (await run(cli, "logout")).returncode == 0


async def test_logging_out_forgets_the_key_also_where_the_server_is_gone(cli: Cli, served: Served) -> None:
    await run(cli, "login", env=of(ADA))
    served.server.should_exit = True
    await served.until(lambda: not served.server.servers[0].is_serving(), "it is gone")
    done = await run(cli, "logout")
    assert done.returncode == 7
    assert json.loads((cli.home / ".gpu-dev" / "credentials").read_text()) == {}


async def test_a_key_is_replaced_on_request(cli: Cli, served: Served) -> None:
    await run(cli, "login", env=of(ADA))
    old = kept(cli, served)
    done = await run(cli, "login", "--rotate", "--json")
    assert json.loads(done.stdout) == {"api_url": served.url, "username": "ada", "expires_at": old["expires_at"]}
    new = kept(cli, served)
    assert new == {**old, "api_key": new["api_key"]}
    assert await served.stores.users.find_key(old["api_key"]) is None
    assert await served.stores.users.find_key(new["api_key"]) is not None


async def test_without_awss_library_it_is_said_what_to_install(cli: Cli, served: Served, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for module in (click, questionary, prompt_toolkit, wcwidth):
        (site / module.__name__).symlink_to(Path(str(module.__file__)).parent)
    source = Path(overview.__file__).parents[2]
    cli.program = [sys.executable, "-S", "-m", "gpudev.cli"]
    done = await run(cli, "login", env={**of(ADA), "PYTHONPATH": f"{source}{os.pathsep}{site}"})
    assert done.returncode == 8
    assert "pip install 'gpu-dev[aws-login]'" in done.stderr


@pytest.fixture
async def giver() -> AsyncIterator[CredentialGiver]:
    giving = CredentialGiver(ADA)
    await giving.start()
    yield giving
    await giving.close()


async def test_single_sign_on_is_used_as_every_aws_program_uses_it(
    cli: Cli, served: Served, giver: CredentialGiver
) -> None:
    start = "https://example.awsapps.com/start"
    folder = cli.home / ".aws"
    (folder / "sso" / "cache").mkdir(parents=True)
    (folder / "config").write_text(
        f"[profile gpu]\nsso_start_url = {start}\nsso_region = us-east-2\nsso_account_id = 123456789012\n"
        f"sso_role_name = {ROLE}\nregion = us-east-2\n"
    )
    token = {"startUrl": start, "region": "us-east-2", "accessToken": SSO_TOKEN, "expiresAt": "2099-01-01T00:00:00Z"}
    (folder / "sso" / "cache" / f"{sha1(start.encode()).hexdigest()}.json").write_text(json.dumps(token))
    done = await run(cli, "login", "--profile", "gpu", env={"AWS_ENDPOINT_URL_SSO": giver.address})
    assert done.returncode == 0, done.stderr
    assert giver.asked == ["/federation/credentials"]
    (folder / "sso" / "cache" / f"{sha1(start.encode()).hexdigest()}.json").unlink()
    ended = await run(cli, "login", "--profile", "gpu", env={"AWS_ENDPOINT_URL_SSO": giver.address})
    assert ended.returncode == 3
    assert "aws sso login --profile gpu" in ended.stderr


async def test_an_instances_role_is_found(cli: Cli, served: Served, giver: CredentialGiver) -> None:
    env: Env = {"AWS_EC2_METADATA_DISABLED": None, "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{giver.address}/"}
    done = await run(cli, "login", env=env)
    assert done.returncode == 0, done.stderr
    assert "as ada" in done.stdout
