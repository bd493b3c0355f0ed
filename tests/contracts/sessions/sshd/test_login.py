"""Who gets in, how, and what is done about those who should not."""

import os
import shutil
import signal
import socket
import subprocess
import time
from itertools import islice
from pathlib import Path

import asyncssh
import psutil
import pytest

from support.ssh.sshd_process import Server, StartServer, eventually, logging_in_at_once

pytestmark = pytest.mark.slow


def _another_key(folder: Path, algorithm: str = "ssh-ed25519", name: str = "other") -> tuple[Path, str]:
    key = asyncssh.generate_private_key(algorithm)
    path = folder / name
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    return path, key.export_public_key().decode()


def _gets_in(server: Server, *keys: Path, user: str = "dev") -> bool:
    return server.ssh("echo in", keys=keys, user=user).stdout == b"in\n"


def test_the_owner_gets_in_and_the_host_key_is_the_given_one(server: Server) -> None:
    assert _gets_in(server)  # with StrictHostKeyChecking, against the key that was configured


@pytest.mark.parametrize("algorithm", ["ssh-rsa", "ecdsa-sha2-nistp256", "ssh-ed25519"])
def test_keys_of_every_usual_kind_are_taken(server: Server, algorithm: str) -> None:
    key, public = _another_key(server.folder, algorithm)
    server.authorized_keys.write_text(public)
    assert _gets_in(server, key)


def test_another_key_does_not_get_in(server: Server) -> None:
    key, _ = _another_key(server.folder)
    assert not _gets_in(server, key)


@pytest.mark.parametrize("user", ["root", "Dev", "devel", "dev2"])
def test_another_user_name_does_not_get_in_with_the_owners_key(server: Server, user: str) -> None:
    assert not _gets_in(server, user=user)


def test_only_public_keys_are_offered_as_a_way_in(server: Server) -> None:
    options = ("-v", "-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=none,password")
    result = server.ssh("true", options=options)
    assert b"Authentications that can continue: publickey\r\n" in result.stderr


def test_a_change_of_keys_holds_from_the_next_login(server: Server) -> None:
    key, public = _another_key(server.folder)
    owners = server.authorized_keys.read_text()
    server.authorized_keys.write_text(owners + public)
    assert _gets_in(server, key)
    server.authorized_keys.write_text(owners)
    assert not _gets_in(server, key)
    server.authorized_keys.unlink()
    assert not _gets_in(server)
    server.authorized_keys.write_text(owners)
    assert _gets_in(server)


def test_a_damaged_line_among_the_keys_keeps_nobody_out(server: Server) -> None:
    owners = server.authorized_keys.read_text()
    server.authorized_keys.write_text(f'# mine\nssh-ed25519 AAAAbroken\ncommand="open quote ssh-rsa\n\xff\n\n{owners}')
    assert _gets_in(server)


def test_options_of_a_key_are_obeyed(server: Server) -> None:
    owners = server.authorized_keys.read_text()
    server.authorized_keys.write_text(f'command="echo forced",no-port-forwarding {owners}')
    assert server.ssh("echo mine").stdout == b"forced\n"


def test_a_client_with_too_many_wrong_keys_is_sent_away(server: Server) -> None:
    keys = tuple(_another_key(server.folder, name=f"wrong{number}")[0] for number in range(40))
    assert b"Too many authentication failures" in server.ssh("true", keys=keys).stderr


def test_whoever_does_not_log_in_in_time_is_cut_off(start_server: StartServer) -> None:
    server = start_server(login_seconds=0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as idle:
        began = time.monotonic()
        while idle.recv(4096):
            pass
        assert time.monotonic() - began < 30


def test_a_crowd_that_comes_at_once_gets_in(server: Server) -> None:
    """As many as a fast machine starts before the first of them has logged in."""
    with logging_in_at_once(server.port, 300):
        assert _gets_in(server)


def test_connections_that_never_log_in_keep_nobody_out(server: Server) -> None:
    idlers = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(520)]
    try:
        assert _gets_in(server)
        for cut_off in idlers[:10]:
            while cut_off.recv(4096):
                pass
    finally:
        for idler in idlers:
            idler.close()


def test_noise_on_the_port_harms_nobody(server: Server) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(70000), b"SSH-2.0-x\r\n" + os.urandom(5000), b""):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            try:
                connection.sendall(noise)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except TimeoutError:
                raise
            except OSError:
                pass  # cut off in the middle of it, also before it could say that this was all
    assert _gets_in(server)


def test_new_keys_are_agreed_upon_in_the_middle_of_a_transfer(server: Server) -> None:
    data = os.urandom(8 * 1024 * 1024)
    result = server.ssh("cat", options=("-o", "RekeyLimit=1M", "-v"), stdin=data)
    assert result.stdout == data
    assert result.stderr.count(b"SSH2_MSG_KEXINIT sent") > 4


def test_compression_works_for_those_who_ask_for_it(server: Server) -> None:
    assert server.ssh("seq 1 100000", options=("-C",)).stdout.count(b"\n") == 100000


def test_a_client_that_stops_answering_is_given_up(start_server: StartServer) -> None:
    server = start_server(keepalive_seconds=0.25)
    ended = server.home / "ended"
    script = f"trap 'echo > {ended}; exit' HUP; while :; do sleep 0.1; done"
    with server.start(script, options=("-tt", "-v"), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as ssh:
        assert ssh.stderr is not None
        asked = (line for line in ssh.stderr if b"keepalive@openssh.com" in line)
        assert len(list(islice(asked, 12))) == 12  # more than may be missed: it answers by itself as long as it runs
        assert not ended.exists()
        os.kill(ssh.pid, signal.SIGSTOP)
        eventually(ended.exists)
        ssh.kill()


def test_the_server_answers_within_a_moment_of_its_fork(start_server: StartServer) -> None:
    """The goal is 30 ms; what it works for is counted, for a busy machine lets it wait."""
    spent = (psutil.Process(start_server().pid).cpu_times() for _ in range(8))
    assert min(times.user + times.system for times in spent) < 0.1


def test_the_systems_client_is_the_real_one() -> None:
    """Everything here proves nothing if `ssh` is not OpenSSH."""
    assert shutil.which("ssh"), "the tests need OpenSSH's client: install openssh-client"
    version = subprocess.run(["ssh", "-V"], capture_output=True, check=True)
    assert version.stderr.startswith(b"OpenSSH_")
