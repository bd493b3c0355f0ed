"""Logging in at a real provider, dex, with the real command line: in a browser, with a code, and again by itself."""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import httpx2
import pytest

from gpudev.cli.commands.access import oidc_browser
from gpudev.cli.commands.access.oidc_issuer import OidcClient, discover
from gpudev.ports.clock import SystemClock
from gpudev.settings import OidcSettings
from support.access.browser_user import Person
from support.access.command_line import Cli
from support.access.dex import ADA, BOB, CLIENT, OTHER_CLIENT, UNVERIFIED, Account, Dex
from support.api.harness import refused
from support.paths import SUPPORT

pytestmark = pytest.mark.slow
SCOPES = ("openid", "email", "profile", "groups", "offline_access")
BROWSER = SUPPORT / "access" / "browser_user.py"


@pytest.fixture
def clock() -> SystemClock:
    """dex has no other."""
    return SystemClock()


@pytest.fixture
def oidc(dex: Dex) -> OidcSettings:
    return OidcSettings(issuer=dex.issuer, client_id=CLIENT, scopes=SCOPES, operator_groups=("gpu-operators",))


async def log_in(cli: Cli, account: Account, code: int = 0) -> str:
    return await cli.run("login", BROWSER=f"{shlex.join([sys.executable, str(BROWSER), account.email])} %s", code=code)


@pytest.fixture
def cli(tmp_path: Path, address: str) -> Cli:
    return Cli(tmp_path, address)


async def test_a_login_in_the_browser_and_again_without_anybody(cli: Cli) -> None:
    assert "Logged in" in await log_in(cli, ADA)
    first = cli.kept
    assert first["username"] == "ada@example.org"
    assert first["login"]["refresh_token"]
    assert (cli.home / ".gpu-dev" / "credentials").stat().st_mode & 0o777 == 0o600
    assert "no live reservations" in await cli.run("list")
    # The key ends: the next command gets another by itself.
    ended = "gpudev_" + "x" * 43
    cli.change(api_key=ended)
    assert "no live reservations" in await cli.run("list")
    assert cli.kept["api_key"] not in (ended, first["api_key"])
    assert cli.kept["login"]["refresh_token"] != first["login"]["refresh_token"], "dex takes each of them once"
    # Nor can two at once disturb each other.
    cli.change(api_key=ended)
    await asyncio.gather(cli.run("list"), cli.run("list"))
    cli.change(api_key=ended)
    await cli.run("list")
    # Once the provider has had enough, somebody must log in again.
    cli.change(api_key=ended, login={**cli.kept["login"], "refresh_token": "stolen-or-old"})
    assert "gpu-dev login" in await cli.run("list", code=3)


async def test_who_logs_out_leaves_nothing_behind(cli: Cli) -> None:
    await log_in(cli, BOB)
    await cli.run("logout")
    assert json.loads((cli.home / ".gpu-dev" / "credentials").read_text()) == {}


async def test_a_code_on_another_device_where_there_is_no_browser(cli: Cli) -> None:
    process = await cli.start("login", "--json")  # no display here: it chooses by itself
    assert process.stderr is not None
    told = ""
    async with asyncio.timeout(60):
        while "enter the code" not in told:
            told += (await process.stderr.readline()).decode()
        where, code = re.search(r"(http\S+)\nand enter the code +(\S+)", told).groups()  # type: ignore[union-attr]
        _, page = await asyncio.to_thread(Person(BOB.email).enter_code, where, code)
        assert "Success" in page or "Successful" in page, page
        said, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(said)["username"] == "bob@example.org"
    assert "no live reservations" in await cli.run("list")


async def test_an_email_that_nobody_verified_lets_nobody_in(cli: Cli) -> None:
    assert "verified email" in await log_in(cli, UNVERIFIED, code=3)
    assert not (cli.home / ".gpu-dev" / "credentials").exists()


async def test_a_token_that_dex_gave_to_another_program_is_not_taken(
    dex: Dex, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", Person(ADA.email).log_in)

    async def token_for(name: str) -> tuple[str, str]:
        program = OidcClient(dex.issuer, name, scopes=SCOPES)
        tokens, nonce = await asyncio.to_thread(oidc_browser.log_in, program, discover(dex.issuer), "api")
        return tokens.id_token, nonce

    for name, status in ((OTHER_CLIENT, 401), (CLIENT, 200)):
        token, nonce = await token_for(name)
        answer = await client.post("/v1/auth/oidc-login", json={"id_token": token, "nonce": nonce})
        assert answer.status_code == status, answer.text
    assert answer.json()["role"] == "operator"
    refused(await client.post("/v1/auth/oidc-login", json={"id_token": token}), 401, "unauthenticated")
