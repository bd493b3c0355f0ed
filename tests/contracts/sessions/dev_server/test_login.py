"""Who gets in to the program inside pods, beyond what every dev server promises."""

import socket
import subprocess
from pathlib import Path

import asyncssh
import pytest

from support.fixtures.dev_server import Build
from support.ssh.dev_server_container import ORDINARY, DevServer
from support.ssh.ssh_server import make_key

pytestmark = pytest.mark.slow


def test_rsa_signatures_over_sha1_are_refused(container: DevServer, tmp_path: Path) -> None:
    key, public = make_key(tmp_path, "ssh-rsa")
    container.set_authorized_keys(public)
    options = ("-o", "PubkeyAcceptedAlgorithms=ssh-rsa")
    assert container.ssh("true", keys=(key,), options=options).returncode == 255


def test_a_forced_command_learns_what_was_asked_for(container: DevServer) -> None:
    owners = container.authorized_keys.read_text()
    container.set_authorized_keys(f'command="echo forced $SSH_ORIGINAL_COMMAND" {owners}')
    assert container.ssh("echo mine").stdout == b"forced echo mine\n"


@pytest.mark.parametrize("option", ['expiry-time="20200101"', 'from="192.0.2.1"', "cert-authority", "unheard-of"])
def test_a_key_with_a_condition_that_is_not_met_or_not_known_does_not_get_in(container: DevServer, option: str) -> None:
    owners = container.authorized_keys.read_text()
    container.set_authorized_keys(f"{option} {owners}")
    assert not container.lets_in()


def test_a_probe_that_only_connects_leaves_no_line_in_the_log(container: DevServer) -> None:
    before = container.log.read_text()
    assert container.ready()
    socket.create_connection(("127.0.0.1", container.port), timeout=10).close()
    assert container.lets_in()
    said = container.log.read_text().removeprefix(before)
    assert "login.failed" not in said
    assert "login.accepted" in said


async def test_a_client_of_another_make_gets_in_too(server: DevServer) -> None:
    async with asyncssh.connect(
        "127.0.0.1", server.port, username="dev", client_keys=[str(server.key)], known_hosts=str(server.known_hosts)
    ) as connection:
        done = await connection.run("echo $((6 * 7)); exit 3")
        assert (done.stdout, done.exit_status) == ("42\n", 3)


def test_without_a_host_key_nothing_is_touched_and_the_reason_is_said(build: Build) -> None:
    builder = build(ORDINARY)
    (builder.config / "host_key").unlink()
    command = [str(builder.program), "serve", "--config", str(builder.config), "--home", str(builder.home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "no host key, so this is not a dev server" in done.stderr
    assert list(builder.home.iterdir()) == []
