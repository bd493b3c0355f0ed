"""`gpu-dev ssh-config`: names for every ssh there is, and exactly one line in what belongs to the person."""

import json
import os
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from support.client.cli_process import Cli
from support.client.fake_api import FakeApi

pytestmark = pytest.mark.slow


@pytest.fixture
def config(home: Path) -> Path:
    return home / ".ssh" / "config"


@pytest.fixture
def own(home: Path) -> Path:
    return home / ".gpu-dev" / "ssh_config"


def told_by_ssh(config: Path, host: str) -> dict[str, str]:
    """What the real ssh makes of it."""
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh client here")
    done = subprocess.run(["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_a_dev_server_has_a_name_that_ssh_knows(cli: Cli, api: FakeApi, config: Path, home: Path) -> None:
    job = api.add(status="active", name="My Train!")
    done = cli.run("ssh-config")
    assert done.stdout == f"{job.reservation_id[:8]}  ssh gpu-dev-my-train\n"
    for name in ("gpu-dev-my-train", f"gpu-dev-{job.reservation_id[:8]}"):
        told = told_by_ssh(config, name)
        assert (told["hostname"], told["port"], told["user"]) == ("127.0.0.1", "31234", "dev")
        assert told["stricthostkeychecking"] in ("true", "yes")
        assert told["userknownhostsfile"] == str(home / ".gpu-dev" / "known_hosts.d" / job.reservation_id)
        assert "proxycommand" not in told
    assert told_by_ssh(config, "elsewhere.example")["user"] != "dev"


def test_one_on_another_machine_is_reached_by_whichever_way_there_is(cli: Cli, api: FakeApi, config: Path) -> None:
    job = api.add(status="active")
    api.change(job.reservation_id, node_ip="10.1.2.3")
    cli.run("ssh-config")
    command = told_by_ssh(config, f"gpu-dev-{job.reservation_id[:8]}")["proxycommand"]
    assert command.endswith(f"proxy-command --auto --api-url {api.url} {job.reservation_id}")


def test_what_the_person_wrote_stays_and_is_kept(cli: Cli, api: FakeApi, config: Path, own: Path) -> None:
    before = "# mine\nHost work\n    User ada\n    # caf\u00e9\n"
    config.write_text(before)
    config.chmod(0o640)
    api.add(status="active", name="one")
    for _ in range(3):
        assert cli.run("ssh-config").returncode == 0
    assert config.read_text() == f'Include "{own}"\n\n{before}'
    assert config.stat().st_mode & 0o777 == 0o640
    backup = config.with_name("config.before-gpu-dev")
    assert backup.read_text() == before
    assert backup.stat().st_mode & 0o777 == 0o640
    assert told_by_ssh(config, "work")["user"] == "ada"
    assert cli.run("ssh-config", "--remove").stdout == "Removed.\n"
    assert config.read_text() == before
    assert not own.exists()


@pytest.mark.parametrize(
    "before",
    [b"Host work\r\n    User ada\r\nMatch host x\r\n    User bob", b"\n\n# mine\nHost work\n\n\n", b"# caf\xe9\n"],
    ids=["lines as on Windows, the last without an end", "empty lines around", "another encoding"],
)
def test_odd_files_come_back_byte_for_byte(cli: Cli, api: FakeApi, config: Path, own: Path, before: bytes) -> None:
    config.write_bytes(before)
    api.add(status="active", name="one")
    for _ in range(2):
        assert cli.run("ssh-config").returncode == 0
    assert config.read_bytes() == b'Include "%s"\n\n%s' % (bytes(own), before)
    assert config.with_name("config.before-gpu-dev").read_bytes() == before
    cli.run("ssh-config", "--remove")
    assert config.read_bytes() == before


def test_a_jump_host_for_everything_does_not_lead_to_this_machine(cli: Cli, api: FakeApi, config: Path) -> None:
    config.write_text("Host *\n    ProxyJump bastion.example\n")
    api.add(status="active", name="one")
    cli.run("ssh-config")
    assert told_by_ssh(config, "elsewhere.example")["proxyjump"] == "bastion.example"
    assert "proxyjump" not in told_by_ssh(config, "gpu-dev-one")


def test_a_line_that_slipped_below_a_host_comes_back_to_the_top(
    cli: Cli, api: FakeApi, config: Path, own: Path
) -> None:
    config.write_text(f'Host work\n    User ada\nInclude "{own}"\n')
    api.add(status="active", name="one")
    cli.run("ssh-config")
    assert config.read_text() == f'Include "{own}"\n\nHost work\n    User ada\n'
    # Where the person moved it to a place that is as good, it stays.
    moved = f'# first\nInclude "{own}"\nHost work\n    User ada\n'
    config.write_text(moved)
    cli.run("ssh-config")
    assert config.read_text() == moved


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_in_somebodys_home_stay_theirs_when_root_writes_them(
    cli: Cli, api: FakeApi, config: Path, own: Path
) -> None:
    config.write_text("Host work\n    User ada\n")
    own.parent.mkdir(mode=0o700)
    for path in (config, config.parent, own.parent):
        os.chown(path, 4321, 4322)
    api.add(status="active", name="one")
    assert cli.run("ssh-config").returncode == 0
    for path in (config, config.with_name("config.before-gpu-dev"), own):
        assert (path.stat().st_uid, path.stat().st_gid) == (4321, 4322)


def test_a_link_is_followed_and_not_replaced(cli: Cli, api: FakeApi, config: Path, tmp_path: Path) -> None:
    dotfile = tmp_path / "dotfiles-config"
    dotfile.write_text("Host work\n")
    config.symlink_to(dotfile)
    api.add(status="active")
    cli.run("ssh-config")
    assert config.is_symlink()
    assert dotfile.read_text().startswith("Include ")


def test_without_an_ssh_folder_one_is_made_for_its_owner_alone(cli: Cli, api: FakeApi, home: Path) -> None:
    shutil.rmtree(home / ".ssh")
    api.add(status="active")
    assert cli.run("ssh-config").returncode == 0
    assert (home / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (home / ".ssh" / "config").stat().st_mode & 0o777 == 0o600
    assert (home / ".gpu-dev" / "ssh_config").stat().st_mode & 0o777 == 0o600


def test_what_has_ended_is_taken_out(cli: Cli, api: FakeApi, own: Path) -> None:
    first, second = api.add(status="active", name="first"), api.add(status="active", name="second")
    cli.run("ssh-config")
    api.change(first.reservation_id, status="expired")
    cli.run("ssh-config")
    assert first.reservation_id not in own.read_text()
    assert "gpu-dev-second" in own.read_text()
    cli.run("cancel", second.reservation_id, "--yes")
    assert second.reservation_id not in own.read_text()


def test_of_two_with_one_name_the_first_keeps_it_however_often_it_is_written(cli: Cli, api: FakeApi) -> None:
    first, second = (api.add(status="active", name=name).reservation_id for name in ("same", "SAME"))
    wanted = {first: "gpu-dev-same", second: f"gpu-dev-{second[:8]}"}
    for _ in range(2):
        assert json.loads(cli.run("ssh-config", "--json").stdout) == wanted
    api.change(first, status="expired")
    assert json.loads(cli.run("ssh-config", "--json").stdout) == {second: "gpu-dev-same"}


def test_those_of_another_api_stay_until_their_time_is_over(cli: Cli, api: FakeApi, own: Path) -> None:
    own.parent.mkdir(mode=0o700)
    now = datetime.now(UTC)
    blocks = "\n".join(
        f"# {digit * 8}-0000-4000-8000-000000000000 at https://other.example until {until.isoformat()}\n"
        f"Host gpu-dev-{digit}\n    User dev\n"
        for digit, until in (("a", now + timedelta(hours=1)), ("b", now - timedelta(hours=1)))
    )
    own.write_text(blocks)
    api.add(status="active")
    cli.run("ssh-config")
    text = own.read_text()
    assert "Host gpu-dev-a\n    User dev\n" in text
    assert "Host gpu-dev-b\n" not in text


def test_one_that_is_known_by_another_address_too_stands_there_once(cli: Cli, api: FakeApi, own: Path) -> None:
    job = api.add(status="active", name="train")
    cli.run("ssh-config")
    # As after the API has moved to another port.
    own.write_text(own.read_text().replace(api.url, "http://127.0.0.1:9").replace("Port 31234", "Port 31235"))
    assert json.loads(cli.run("ssh-config", "--json").stdout) == {job.reservation_id: "gpu-dev-train"}
    text = own.read_text()
    assert text.count("Host gpu-dev-train") == 1
    assert "31235" not in text


def test_one_that_was_extended_elsewhere_keeps_its_name_when_the_next_comes(cli: Cli, api: FakeApi, own: Path) -> None:
    job = api.add(status="active", name="train")
    cli.run("ssh-config")
    own.write_text(
        re.sub(r"until \S+", f"until {(datetime.now(UTC) - timedelta(minutes=1)).isoformat()}", own.read_text())
    )
    api.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    assert cli.run("reserve", "--name", "other").returncode == 0
    text = own.read_text()
    assert f"Host gpu-dev-train gpu-dev-{job.reservation_id[:8]}\n" in text
    assert "Host gpu-dev-other " in text


def test_a_name_that_is_anothers_id_leads_to_that_other(cli: Cli, api: FakeApi, config: Path) -> None:
    first = api.add(status="active", name="first")
    second = api.add(status="active", name=first.reservation_id[:8])
    cli.run("ssh-config")
    short = f"gpu-dev-{first.reservation_id[:8]}"
    assert told_by_ssh(config, short)["hostkeyalias"] == short
    other = f"gpu-dev-{second.reservation_id[:8]}"
    assert told_by_ssh(config, other)["hostkeyalias"] == other


@pytest.mark.parametrize(
    "line", ["Include ~/.gpu-dev/ssh_config", "include={own}", 'INCLUDE   "~/.gpu-dev/ssh_config"  ', "Include {own}"]
)
def test_a_line_that_somebody_wrote_by_hand_is_the_one(
    cli: Cli, api: FakeApi, config: Path, own: Path, line: str
) -> None:
    before = f"# mine\n{line.format(own=own)}\nInclude other\nHost work\n    User ada\n"
    config.write_text(before)
    api.add(status="active", name="one")
    assert cli.run("ssh-config").returncode == 0
    assert config.read_text() == before
    cli.run("ssh-config", "--remove")
    assert config.read_text() == "# mine\nInclude other\nHost work\n    User ada\n"


def test_reserve_does_it_unless_told_otherwise(cli: Cli, api: FakeApi, config: Path) -> None:
    api.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    cli.run("config", "set", "ssh_config", "off")
    assert "ssh -p" in cli.run("reserve").stdout
    assert not config.exists()
    cli.run("config", "unset", "ssh_config")
    assert "ssh gpu-dev-" in cli.run("reserve").stdout
    assert config.read_text().count("Include") == 1
    assert cli.run("config", "set", "ssh_config", "perhaps").returncode == 2


def test_a_name_is_free_again_when_whoever_had_it_ended_elsewhere(cli: Cli, api: FakeApi, config: Path) -> None:
    api.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    assert "  ssh gpu-dev-train\n" in cli.run("reserve", "--name", "train").stdout
    [first] = api.jobs.values()
    api.change(first.reservation_id, status="cancelled")
    assert "  ssh gpu-dev-train\n" in cli.run("reserve", "--name", "Train").stdout
    second = next(job for job in api.jobs.values() if job.reservation_id != first.reservation_id)
    assert told_by_ssh(config, "gpu-dev-train")["hostkeyalias"] == f"gpu-dev-{second.reservation_id[:8]}"
    assert "  ssh gpu-dev-train\n" not in cli.run("reserve", "--name", "train").stdout, "while it is there it has it"


def test_a_file_that_cannot_be_written_stops_no_reservation(cli: Cli, api: FakeApi, config: Path) -> None:
    api.on_submit = lambda api, job: api.activate(job.reservation_id) and None
    config.mkdir()  # not even root can write to that
    done = cli.run("reserve")
    assert done.returncode == 0
    assert "Note: " in done.stderr
    assert "Ready" in done.stdout


def test_editors_are_opened_by_name_or_a_link_is_printed(cli: Cli, api: FakeApi, tmp_path: Path, config: Path) -> None:
    api.add(status="active", name="train")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").symlink_to("/bin/true")
    cli.env["PATH"] = str(folder)
    for editor, scheme in (("code", "vscode"), ("cursor", "cursor")):
        done = cli.run("connect", f"--{editor}")
        assert done.stdout == f"{scheme}://vscode-remote/ssh-remote+gpu-dev-train/home/dev\n"
        program = folder / editor
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/{editor}\n')
        program.chmod(0o755)
        assert cli.run("connect", f"--{editor}", "--folder", "/workspace").returncode == 0
        assert (tmp_path / editor).read_text() == "--remote ssh-remote+gpu-dev-train /workspace\n"
    assert config.read_text().startswith("Include ")
    assert cli.run("connect", "--code", "--cursor").returncode == 2
    for way in ("--direct", "--proxy"):
        done = cli.run("connect", "--code", way)
        assert (done.returncode, "do not apply to editors" in done.stderr) == (2, True)


def test_what_an_editor_opens_is_read_from_the_home_there(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    api.add(status="active", name="train")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").symlink_to("/bin/true")
    cli.env["PATH"] = str(tmp_path / "bin")
    for folder in ("my project", "~/my project/", "/home/dev/my project"):
        link = cli.run("connect", "--code", "--folder", folder).stdout
        assert link == "vscode://vscode-remote/ssh-remote+gpu-dev-train/home/dev/my%20project\n"
    done = cli.run("connect", "--folder", "my project")
    assert done.returncode == 2, "no editor is asked for"
    assert "`gpu-dev connect -- " in done.stderr
