"""Forwarded ports, sockets and agents."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from contracts.ssh.servers import SshServers, end_process
from support.polling import eventually
from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS, free_port
from support.ssh.forwarding import (
    PATIENCE,
    answers,
    ask,
    echo_service,
    forwarding,
    is_refused,
    serving_echo,
    to_path,
    to_port,
    unix_listener,
    wait_for_line,
)
from support.ssh.ssh_server import (
    MEBIBYTE,
    SshServer,
)

METADATA_ADDRESSES = ("169.254.169.254", "169.254.170.2", "[::ffff:169.254.169.254]", "[fd00:ec2::254]")


class ForwardingContract(SshServers):
    """Forwarded ports, sockets and agents, and several sessions over one connection."""

    @pytest.fixture
    def service(self) -> Iterator[int]:
        with serving_echo() as port:
            yield port

    def test_a_local_port_leads_to_the_dev_server(self, ssh: SshServer, service: int) -> None:
        port = free_port()
        with forwarding(ssh, "-L", f"{port}:localhost:{service}"):
            eventually(lambda: answers(to_port(port)))
            data = b"a" * (5 * MEBIBYTE)
            assert ask(to_port(port), data) == data.upper()

    def test_a_remote_port_leads_back_to_the_client(self, ssh: SshServer, service: int) -> None:
        with forwarding(ssh, "-R", f"0:127.0.0.1:{service}") as client:
            port = int(wait_for_line(client, r"Allocated port (\d+)")[1])
            assert ask(to_port(port)) == b"HELLO"
            data = b"b" * (5 * MEBIBYTE)
            assert ask(to_port(port), data) == data.upper()
        eventually(lambda: not answers(to_port(port)))

    @NEEDS_OTHER_ADDRESS
    @pytest.mark.parametrize("address", ["*", "0.0.0.0", "127.0.0.1", "localhost", "192.0.2.1"])
    def test_a_remote_port_is_reached_from_this_machine_alone(self, ssh: SshServer, service: int, address: str) -> None:
        port = free_port()
        with forwarding(ssh, "-R", f"{address}:{port}:127.0.0.1:{service}") as client:
            wait_for_line(client, "remote forward success")
            assert ask(to_port(port)) == b"HELLO"
            with socket.socket() as anywhere:  # fails while somebody else listens on all addresses
                anywhere.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                anywhere.bind((OTHER_ADDRESS, port))
                anywhere.listen()

    def test_a_remote_port_in_use_is_refused(self, ssh: SshServer, service: int) -> None:
        assert is_refused(ssh, "-R", f"{service}:127.0.0.1:1")

    def test_a_remote_port_can_be_given_up_and_taken_again(self, ssh: SshServer, service: int) -> None:
        port = free_port()
        control = ("-o", f"ControlPath={ssh.folder}/control")
        forward = ("-R", f"{port}:127.0.0.1:{service}")
        with forwarding(ssh, "-M", *control):
            eventually((ssh.folder / "control").exists)
            for _ in range(2):
                assert ssh.ssh(options=("-O", "forward", *forward, *control)).returncode == 0
                assert answers(to_port(port))
                assert ssh.ssh(options=("-O", "cancel", *forward, *control)).returncode == 0
                eventually(lambda: not answers(to_port(port)))

    def test_a_socks_proxy_leads_through_the_dev_server(self, ssh: SshServer, service: int) -> None:
        port = free_port()

        def through_proxy() -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            connection.sendall(b"\x05\x01\x00")
            assert connection.recv(2) == b"\x05\x00"
            connection.sendall(b"\x05\x01\x00\x03\x09localhost" + service.to_bytes(2, "big"))
            assert connection.recv(10)[:2] == b"\x05\x00"
            return connection

        with forwarding(ssh, "-D", f"127.0.0.1:{port}"):
            eventually(lambda: answers(through_proxy))

    @pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
    def test_standard_input_and_output_can_be_a_connection(self, ssh: SshServer, service: int, name: str) -> None:
        """localhost is often two addresses, and most servers listen on one of them."""
        assert ssh.ssh(options=("-W", f"{name}:{service}"), stdin=b"jump").stdout == b"JUMP"

    def test_such_a_connection_is_over_when_both_sides_have_ended_the_other_one_first(self, ssh: SshServer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(PATIENCE)
            there = f"127.0.0.1:{listener.getsockname()[1]}"
            with ssh.start(options=("-W", there), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"goodbye")
                    assert client.stdin is not None and client.stdout is not None
                    assert client.stdout.read() == b"goodbye"
                    client.stdin.close()
                    assert client.wait(PATIENCE) == 0
                finally:
                    client.kill()

    @pytest.mark.parametrize("address", METADATA_ADDRESSES)
    def test_nobody_is_led_to_where_clouds_tell_secrets(self, ssh: SshServer, address: str) -> None:
        result = ssh.ssh(options=("-W", f"{address}:80"), stdin=b"GET / HTTP/1.0\r\n\r\n")
        assert result.stdout == b""
        assert b"administratively prohibited" in result.stderr

    def test_a_connection_that_cannot_be_made_is_told(self, ssh: SshServer) -> None:
        result = ssh.ssh(options=("-W", f"127.0.0.1:{free_port()}"), stdin=b"jump")
        assert result.returncode != 0
        assert b"open failed" in result.stderr

    def test_a_local_socket_leads_to_one_in_the_dev_server_and_the_person_is_seen_there(self, ssh: SshServer) -> None:
        theirs, ours = ssh.folder / "theirs", ssh.folder / "ours"
        seen: list[int] = []
        with echo_service(unix_listener(theirs), seen), forwarding(ssh, "-L", f"{ours}:{ssh.inside(theirs)}"):
            eventually(lambda: answers(to_path(ours)))
        assert set(seen) == {ssh.uid}

    def test_a_remote_socket_leads_back_is_private_and_replaces_one_left_behind(
        self, ssh: SshServer, service: int
    ) -> None:
        path = ssh.folder / "remote"
        for _ in range(2):
            with forwarding(ssh, "-R", f"{ssh.inside(path)}:127.0.0.1:{service}"):
                eventually(lambda: answers(to_path(path)))
                assert path.stat().st_mode & 0o077 == 0
                assert path.stat().st_uid == ssh.uid
            eventually(lambda: not answers(to_path(path)))
            path.unlink(missing_ok=True)
            left_behind = unix_listener(path)  # the second finds a socket that nobody listens on
            os.chown(path, ssh.uid, -1)
            left_behind.close()

    def test_a_remote_socket_in_use_is_refused(self, ssh: SshServer, service: int) -> None:
        path = ssh.folder / "remote"
        forward = ("-R", f"{ssh.inside(path)}:127.0.0.1:{service}")
        with forwarding(ssh, *forward):
            eventually(lambda: answers(to_path(path)))
            assert is_refused(ssh, *forward)
            assert answers(to_path(path))

    def test_the_agent_is_forwarded_and_its_socket_goes_with_the_connection(self, ssh: SshServer) -> None:
        if shutil.which("ssh-agent") is None:
            pytest.skip("NOT TESTED: ssh-agent is not installed")
        agent_socket = ssh.folder / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
        try:
            eventually(agent_socket.exists)
            environment = {**os.environ, "SSH_AUTH_SOCK": str(agent_socket)}
            subprocess.run(["ssh-add", "-q", str(ssh.key)], env=environment, check=True)
            command = ["ssh", "-A", "-o", f"IdentityAgent={agent_socket}", *ssh.command()[1:]]
            script = 'echo $SSH_AUTH_SOCK; stat -c %a:%u "$(dirname $SSH_AUTH_SOCK)"; ssh-add -L'
            result = subprocess.run([*command, script], env=environment, capture_output=True, timeout=30, check=False)
            path, folder, key = result.stdout.decode().split("\n", 2)
            assert folder == f"700:{ssh.uid}"
            assert key.split()[:2] == ssh.authorized_keys.read_text().split()[:2]
            eventually(lambda: not ssh.outside(path).parent.exists())
        finally:
            end_process(agent)

    def test_many_sessions_share_one_connection(self, ssh: SshServer) -> None:
        control = ("-o", f"ControlPath={ssh.folder}/control")
        with forwarding(ssh, "-M", *control):
            eventually((ssh.folder / "control").exists)
            sessions = [ssh.start(f"sleep 0.2; echo {n}", options=control, stdout=subprocess.PIPE) for n in range(20)]
            connections = {ssh.ssh("echo $SSH_CONNECTION", options=control).stdout for _ in range(2)}
            assert [session.communicate()[0] for session in sessions] == [f"{n}\n".encode() for n in range(20)]
            assert len(connections) == 1
            assert ssh.ssh("true", options=("-O", "check", *control)).returncode == 0
