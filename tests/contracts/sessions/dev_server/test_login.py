"""Who gets in, how, and what is done about those who should not."""

import os
import signal
import socket
import subprocess
import time
from itertools import islice
from pathlib import Path

import asyncssh
import pytest

from support.fixtures.dev_server import Build
from support.ssh.dev_server_container import ORDINARY, Builder, DevServer
from support.ssh.sshd_process import eventually, logging_in_at_once

pytestmark = pytest.mark.slow


def another_key(folder: Path, algorithm: str = "ssh-ed25519", name: str = "other") -> tuple[Path, str]:
    key = asyncssh.generate_private_key(algorithm)
    path = folder / name
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    return path, key.export_public_key().decode()


def gets_in(server: DevServer, *keys: Path, user: str = "dev") -> bool:
    return server.ssh("echo in", keys=keys, user=user).stdout == b"in\n"


def put_keys(server: DevServer, text: str) -> None:
    """As a Secret's update does: another file in its place."""
    fresh = server.authorized_keys.with_name("fresh")
    fresh.write_text(text)
    os.chown(fresh, server.config.stat().st_uid, server.config.stat().st_gid)
    fresh.rename(server.authorized_keys)


def test_the_owner_gets_in_and_the_host_key_is_the_given_one(server: DevServer) -> None:
    assert gets_in(server)  # with StrictHostKeyChecking, against the key that was given


@pytest.mark.parametrize("algorithm", ["ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp521", "ssh-ed25519"])
def test_keys_of_every_usual_kind_are_taken(container: DevServer, tmp_path: Path, algorithm: str) -> None:
    key, public = another_key(tmp_path, algorithm)
    put_keys(container, public)
    assert gets_in(container, key)


def test_rsa_signatures_over_sha1_are_refused(container: DevServer, tmp_path: Path) -> None:
    key, public = another_key(tmp_path, "ssh-rsa")
    put_keys(container, public)
    options = ("-o", "PubkeyAcceptedAlgorithms=ssh-rsa")
    assert container.ssh("true", keys=(key,), options=options).returncode == 255


def test_another_key_does_not_get_in(server: DevServer, tmp_path: Path) -> None:
    key, _ = another_key(tmp_path)
    assert not gets_in(server, key)


@pytest.mark.parametrize("user", ["root", "Dev", "ubuntu", "dev2", ""])
def test_another_user_name_does_not_get_in_with_the_owners_key(container: DevServer, user: str) -> None:
    assert not gets_in(container, user=user)


def test_only_public_keys_are_offered_as_a_way_in(container: DevServer) -> None:
    options = ("-v", "-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=none,password")
    result = container.ssh("true", options=options)
    assert b"Authentications that can continue: publickey\r\n" in result.stderr


def test_a_change_of_keys_holds_from_the_next_login(server: DevServer, tmp_path: Path) -> None:
    key, public = another_key(tmp_path)
    owners = server.authorized_keys.read_text()
    put_keys(server, owners + public)
    assert gets_in(server, key)
    put_keys(server, owners)
    assert not gets_in(server, key)
    server.authorized_keys.unlink()
    assert not gets_in(server)
    put_keys(server, owners)
    assert gets_in(server)


def test_a_damaged_line_among_the_keys_keeps_nobody_out(container: DevServer) -> None:
    owners = container.authorized_keys.read_text()
    put_keys(container, f'# mine\nssh-ed25519 AAAAbroken\ncommand="open quote ssh-rsa\n\xff\n\n{owners}')
    assert gets_in(container)


def test_options_of_a_key_are_obeyed(container: DevServer) -> None:
    owners = container.authorized_keys.read_text()
    put_keys(container, f'command="echo forced $SSH_ORIGINAL_COMMAND",no-port-forwarding {owners}')
    assert container.ssh("echo mine").stdout == b"forced echo mine\n"
    assert b"open failed" in container.ssh(options=("-W", f"127.0.0.1:{container.port}")).stderr


@pytest.mark.parametrize("option", ['expiry-time="20200101"', 'from="192.0.2.1"', "cert-authority", "unheard-of"])
def test_a_key_with_a_condition_that_is_not_met_or_not_known_does_not_get_in(container: DevServer, option: str) -> None:
    owners = container.authorized_keys.read_text()
    put_keys(container, f"{option} {owners}")
    assert not gets_in(container)


def test_a_client_with_too_many_wrong_keys_is_sent_away(container: DevServer, tmp_path: Path) -> None:
    keys = tuple(another_key(tmp_path, name=f"wrong{number}")[0] for number in range(40))
    assert b"oo many authentication failures" in container.ssh("true", keys=keys).stderr
    many = (*keys[:20], container.key)
    assert gets_in(container, *many)


def test_whoever_does_not_log_in_in_time_is_cut_off(builder: Builder) -> None:
    server = builder.start("--login-time", "500ms")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as idle:
        began = time.monotonic()
        while idle.recv(4096):
            pass
        assert time.monotonic() - began < 30


def test_a_crowd_that_comes_at_once_gets_in(container: DevServer) -> None:
    """As many as a fast machine starts before the first of them has logged in."""
    with logging_in_at_once(container.port, 300):
        assert gets_in(container)


def test_connections_that_never_log_in_keep_nobody_out(container: DevServer) -> None:
    idlers = [socket.create_connection(("127.0.0.1", container.port), timeout=10) for _ in range(520)]
    try:
        assert gets_in(container)
        for cut_off in idlers[:10]:
            while cut_off.recv(4096):
                pass
    finally:
        for idler in idlers:
            idler.close()


def test_noise_on_the_port_harms_nobody(container: DevServer) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(70000), b"SSH-2.0-x\r\n" + os.urandom(5000), b""):
        with socket.create_connection(("127.0.0.1", container.port), timeout=10) as connection:
            try:
                connection.sendall(noise)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except TimeoutError:
                raise
            except OSError:
                pass  # cut off in the middle of it, also before it could say that this was all
    assert gets_in(container)


def test_a_probe_that_only_connects_leaves_no_line_in_the_log(container: DevServer) -> None:
    before = container.log.read_text()
    assert container.ready()
    socket.create_connection(("127.0.0.1", container.port), timeout=10).close()
    assert gets_in(container)
    said = container.log.read_text().removeprefix(before)
    assert "login.failed" not in said
    assert "login.accepted" in said


def test_new_keys_are_agreed_upon_in_the_middle_of_a_transfer(container: DevServer) -> None:
    data = os.urandom(8 * 1024 * 1024)
    result = container.ssh("cat", options=("-o", "RekeyLimit=1M", "-v"), stdin=data)
    assert result.stdout == data
    assert result.stderr.count(b"SSH2_MSG_KEXINIT sent") > 4


def test_a_client_that_stops_answering_is_given_up(builder: Builder) -> None:
    server = builder.start("--keepalive", "250ms")
    ended = server.home / "ended"
    script = "trap 'echo > ~/ended; exit' HUP; while :; do sleep 0.1; done"
    with server.start(script, options=("-tt", "-v"), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as ssh:
        assert ssh.stderr is not None
        asked = (line for line in ssh.stderr if b"keepalive@openssh.com" in line)
        assert len(list(islice(asked, 12))) == 12  # more than may be missed: it answers by itself as long as it runs
        assert not ended.exists()
        os.kill(ssh.pid, signal.SIGSTOP)
        eventually(ended.exists)
        ssh.kill()


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
    assert "there is no host key" in done.stderr
    assert list(builder.home.iterdir()) == []
