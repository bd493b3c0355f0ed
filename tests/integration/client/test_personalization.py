"""What people bring to their dev servers, from options and settings to what the API is asked; and near ends."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.client.cli_process import Cli, Completed
from support.client.fake_api import FakeApi

pytestmark = pytest.mark.slow

SECRET = "planted-4711"


def asked(api: FakeApi) -> dict[str, Any]:
    body: dict[str, Any] = api.requests("POST", "/submit")[-1].json
    return body


def reserve(cli: Cli, *options: str, **env: str) -> Completed:
    return cli.run("reserve", "--github-user", "octocat", "--type", "a100", "--no-wait", *options, env=env)


def test_options_bring_variables_dotfiles_and_a_script(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text(f"A=1\nB={SECRET}\n")
    (tmp_path / "b.env").write_text("B='2\n3'\n")
    (tmp_path / "start.sh").write_text("#!/bin/sh\necho $A; rm -rf $B\n")
    files = [f"--env-file={tmp_path / name}" for name in ("a.env", "b.env")]
    done = reserve(
        cli,
        *files,
        *("--env", "C=x=y", "--env", "FROM_HERE", "--dotfiles", "git@github.com:ada/dotfiles"),
        f"--startup-script={tmp_path / 'start.sh'}",
        FROM_HERE=SECRET,
    )
    assert done.returncode == 0, done.stderr
    body = asked(api)
    assert body["environment"] == {"A": "1", "B": "2\n3", "C": "x=y", "FROM_HERE": SECRET}
    assert body["dotfiles"] == "git@github.com:ada/dotfiles"
    assert body["startup_script"] == "#!/bin/sh\necho $A; rm -rf $B\n"
    assert SECRET not in done.stdout + done.stderr


def test_settings_bring_the_same_to_every_reservation_until_one_says_none(
    cli: Cli, api: FakeApi, tmp_path: Path
) -> None:
    (tmp_path / "my.env").write_text("A=1\n")
    (tmp_path / "start.sh").write_text("echo hello\n")
    for name, value in (
        ("dotfiles", "https://github.com/ada/dotfiles"),
        ("startup-script", str(tmp_path / "start.sh")),
        ("env_file", str(tmp_path / "my.env")),
    ):
        assert cli.run("config", "set", name, value).returncode == 0
    assert reserve(cli, "--env", "B=2").returncode == 0
    body = asked(api)
    assert (body["environment"], body["startup_script"]) == ({"A": "1", "B": "2"}, "echo hello\n")
    assert body["dotfiles"] == "https://github.com/ada/dotfiles"
    assert reserve(cli, "--dotfiles=none", "--startup-script=none", "--env-file=none").returncode == 0
    assert not {"environment", "dotfiles", "startup_script"} & {name for name, value in asked(api).items() if value}


@pytest.mark.parametrize(
    ("options", "code"),
    [(("--env", f"PATH={SECRET}"), 2), (("--startup-script", "/nonexistent/file"), 8)],
)
def test_what_cannot_be_brought_is_said_before_anything_is_asked(
    cli: Cli, api: FakeApi, options: tuple[str, str], code: int
) -> None:
    done = reserve(cli, *options)
    assert done.returncode == code
    assert done.stderr.startswith("Error: ")
    assert SECRET not in done.stderr
    assert not api.requests("POST", "/submit")


def test_an_end_that_is_near_is_seen_in_the_list_and_in_the_status(cli: Cli, api: FakeApi) -> None:
    reserve(cli)
    [job] = api.jobs.values()
    api.activate(job.reservation_id)
    api.change(job.reservation_id, expires_at=datetime.now(UTC) + timedelta(minutes=11, seconds=50))
    short = job.reservation_id[:8]
    line = f"ends in 12 min: `gpu-dev extend {short} --hours 1` extends it"
    assert f"\n{short} {line}\n" in cli.run("list").stdout
    assert f"\nReservation {line}.\n" in cli.run("status").stdout
    api.change(job.reservation_id, expires_at=datetime.now(UTC) + timedelta(hours=3))
    assert "extends it" not in cli.run("list").stdout + cli.run("status").stdout
