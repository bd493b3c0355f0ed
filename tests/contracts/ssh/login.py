"""Who gets in, and how a login ends."""

import os
import signal
import socket
import subprocess
import time
from itertools import islice
from pathlib import Path

import pytest

from contracts.ssh.servers import SshServers
from support.polling import eventually
from support.ssh.ssh_server import (
    MEBIBYTE,
    SshServer,
    StartSsh,
    logging_in_at_once,
    make_key,
)


class LoginContract(SshServers):
    """Who gets in, how, and what is done about those who should not."""

    def test_the_owner_gets_in_and_the_host_key_is_the_given_one(self, ssh: SshServer) -> None:
        assert ssh.lets_in()  # with StrictHostKeyChecking, against the key that was given

    @pytest.mark.parametrize("algorithm", ["ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp521", "ssh-ed25519"])
    def test_keys_of_every_usual_kind_are_taken(self, ssh: SshServer, tmp_path: Path, algorithm: str) -> None:
        key, public = make_key(tmp_path, algorithm)
        ssh.set_authorized_keys(public)
        assert ssh.lets_in(key)

    def test_another_key_does_not_get_in(self, ssh: SshServer, tmp_path: Path) -> None:
        key, _ = make_key(tmp_path)
        assert not ssh.lets_in(key)

    @pytest.mark.parametrize("user", ["root", "Dev", "devel", "ubuntu", "dev2", ""])
    def test_another_user_name_does_not_get_in_with_the_owners_key(self, ssh: SshServer, user: str) -> None:
        assert not ssh.lets_in(user=user)

    def test_only_public_keys_are_offered_as_a_way_in(self, ssh: SshServer) -> None:
        options = ("-v", "-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=none,password")
        result = ssh.ssh("true", options=options)
        assert b"Authentications that can continue: publickey\r\n" in result.stderr

    def test_a_change_of_keys_holds_from_the_next_login(self, ssh: SshServer, tmp_path: Path) -> None:
        key, public = make_key(tmp_path)
        owners = ssh.authorized_keys.read_text()
        ssh.set_authorized_keys(owners + public)
        assert ssh.lets_in(key)
        ssh.set_authorized_keys(owners)
        assert not ssh.lets_in(key)
        ssh.authorized_keys.unlink()
        assert not ssh.lets_in()
        ssh.set_authorized_keys(owners)
        assert ssh.lets_in()

    def test_a_damaged_line_among_the_keys_keeps_nobody_out(self, ssh: SshServer) -> None:
        owners = ssh.authorized_keys.read_text()
        ssh.set_authorized_keys(f'# mine\nssh-ed25519 AAAAbroken\ncommand="open quote ssh-rsa\n\xff\n\n{owners}')
        assert ssh.lets_in()

    def test_options_of_a_key_are_obeyed(self, ssh: SshServer) -> None:
        owners = ssh.authorized_keys.read_text()
        ssh.set_authorized_keys(f'command="echo forced",no-port-forwarding {owners}')
        assert ssh.ssh("echo mine").stdout == b"forced\n"
        assert b"open failed" in ssh.ssh(options=("-W", f"127.0.0.1:{ssh.port}")).stderr

    def test_a_client_with_too_many_wrong_keys_is_sent_away(self, ssh: SshServer, tmp_path: Path) -> None:
        keys = tuple(make_key(tmp_path, name=f"wrong{number}")[0] for number in range(40))
        assert b"oo many authentication failures" in ssh.ssh("true", keys=keys).stderr
        assert ssh.lets_in(*keys[:20], ssh.key)

    def test_whoever_does_not_log_in_in_time_is_cut_off(self, start_ssh: StartSsh) -> None:
        with socket.create_connection(("127.0.0.1", start_ssh(login_seconds=0.5).port), timeout=30) as idle:
            began = time.monotonic()
            while idle.recv(4096):
                pass
            assert time.monotonic() - began < 30

    def test_a_crowd_that_comes_at_once_gets_in(self, ssh: SshServer) -> None:
        """As many as a fast machine starts before the first of them has logged in."""
        with logging_in_at_once(ssh.port, 300):
            assert ssh.lets_in()

    def test_connections_that_never_log_in_keep_nobody_out(self, ssh: SshServer) -> None:
        idlers = [socket.create_connection(("127.0.0.1", ssh.port), timeout=60) for _ in range(520)]
        try:
            assert ssh.lets_in()
            for cut_off in idlers[:10]:
                while cut_off.recv(4096):
                    pass
        finally:
            for idler in idlers:
                idler.close()

    def test_noise_on_the_port_harms_nobody(self, ssh: SshServer) -> None:
        for noise in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(70000), b"SSH-2.0-x\r\n" + os.urandom(5000), b""):
            with socket.create_connection(("127.0.0.1", ssh.port), timeout=60) as connection:
                try:
                    connection.sendall(noise)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except TimeoutError:
                    raise
                except OSError:
                    pass  # cut off in the middle of it, also before it could say that this was all
        assert ssh.lets_in()

    def test_new_keys_are_agreed_upon_in_the_middle_of_a_transfer(self, ssh: SshServer) -> None:
        data = os.urandom(8 * MEBIBYTE)
        result = ssh.ssh("cat", options=("-o", "RekeyLimit=1M", "-v"), stdin=data)
        assert result.stdout == data
        assert result.stderr.count(b"SSH2_MSG_KEXINIT sent") > 4

    def test_a_client_that_stops_answering_is_given_up(self, start_ssh: StartSsh) -> None:
        server = start_ssh(keepalive_seconds=0.25)
        ended = server.home / "ended"
        script = "trap 'echo > ~/ended; exit' HUP; while :; do sleep 0.1; done"
        with server.start(script, options=("-tt", "-v"), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as client:
            assert client.stderr is not None
            asked = (line for line in client.stderr if b"keepalive@openssh.com" in line)
            assert len(list(islice(asked, 12))) == 12  # more than may be missed: as long as it runs, it answers
            assert not ended.exists()
            os.kill(client.pid, signal.SIGSTOP)
            eventually(ended.exists)
            client.kill()
