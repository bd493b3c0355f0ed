"""What a colleague sees who was invited, was not, or whose key has ended."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from gpudev.adapters.postgres.stores import Stores
from gpudev.domain.access.invitations import InvitationLink
from gpudev.settings import OidcSettings
from support.access.command_line import Cli
from support.clock import ManualClock

pytestmark = pytest.mark.slow


@pytest.fixture
def oidc() -> OidcSettings:
    """Nobody comes in that way."""
    return OidcSettings()


@pytest.fixture
def cli(tmp_path: Path, address: str) -> Cli:
    return Cli(tmp_path, address)


async def invite(cli: Cli, stores: Stores, clock: ManualClock) -> str:
    made = await stores.invitations.invite("bob", None, timedelta(hours=1), now=clock.now())
    return str(InvitationLink(cli.api_url, made.secret))


async def test_who_was_not_invited_is_told_how_one_comes_in(cli: Cli) -> None:
    told = await cli.run("login", code=3)
    assert "accepts invited users only" in told
    assert "users invite" in told


async def test_the_link_is_all_that_is_needed_and_the_key_is_not_renewed_without_another(
    cli: Cli, stores: Stores, clock: ManualClock
) -> None:
    link = await invite(cli, stores, clock)
    nowhere = {"GPU_DEV_API_URL": ""}
    assert "as bob" in await cli.run("login", link, **nowhere)
    assert "no live reservations" in await cli.run("list", **nowhere), "the address was kept with the key"
    cli.change(api_key="gpudev_" + "x" * 43)
    told = await cli.run("list", **nowhere, code=3)
    assert "an invitation works only once" in told
    assert "another link" in told


async def test_a_link_that_is_none_is_refused_without_a_word_of_it(
    cli: Cli, stores: Stores, clock: ManualClock
) -> None:
    link = await invite(cli, stores, clock)
    secret = link.partition("#")[2]
    for arguments in (
        ("login", link.replace("127.0.0.1", "192.0.2.7")),
        ("login", link[:-1]),
        ("login", link, "--api-url", "http://127.0.0.1:1"),
        ("login", link, "--key-stdin"),
        ("login", link, "--device"),
    ):
        assert secret[:20] not in await cli.run(*arguments, code=2)
    assert not (cli.home / ".gpu-dev").exists()
    answer = json.loads(await cli.run("login", link, "--json"))
    assert answer["username"] == "bob", "none of these used it up"
