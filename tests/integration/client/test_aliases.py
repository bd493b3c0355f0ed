"""Names that other programs have for the same, and who somebody is."""

import json

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import KEY, FakeApi

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["ls", "ps"])
def test_a_list_has_other_names(cli: Cli, api: FakeApi, name: str) -> None:
    job = api.add(status="active")
    assert job.reservation_id[:8] in cli.run(name).stdout
    assert cli.run(name, "--quiet").stdout == f"{job.reservation_id[:8]}\n"


def test_rm_cancels(cli: Cli, api: FakeApi) -> None:
    job = api.add(status="active", name="old")
    assert cli.run("rm", "old").returncode == 0
    assert api.jobs[job.reservation_id].status == "cancelled"


def test_help_is_the_help_page_or_that_of_a_command(cli: Cli) -> None:
    assert cli.run("help").stdout == cli.run("--help").stdout
    assert cli.run("help", "extend").stdout == cli.run("extend", "--help").stdout
    assert cli.run("help", "ssh").stdout == cli.run("connect", "--help").stdout
    assert "did you mean" in cli.run("help", "exten").stderr
    assert cli.run("help", "disk", "create").stdout == cli.run("disk", "create", "--help").stdout
    assert cli.run("help", "run", "--", "true").stdout == cli.run("run", "--help").stdout


def test_whoami_and_token(cli: Cli, api: FakeApi) -> None:
    assert cli.run("whoami").stdout == f"unknown user at {api.url} (key from GPU_DEV_API_KEY)\n"
    api.add(status="active")
    assert cli.run("whoami").stdout.startswith("ada at ")
    assert json.loads(cli.run("whoami", "--json").stdout)["username"] == "ada"
    assert cli.run("token").stdout == f"{KEY}\n"


def test_token_gives_no_key_that_the_api_rejects(cli: Cli, api: FakeApi) -> None:
    api.keys = set()
    done = cli.run("token")
    assert (done.returncode, done.stdout) == (3, "")


def test_a_list_of_what_has_ended_says_how(cli: Cli, api: FakeApi) -> None:
    api.add(status="cancelled", outcome="done", command="make test")
    row = cli.run("list", "--all").stdout.splitlines()[1]
    assert row.split()[1] == "done"
    assert row.endswith("make test")
