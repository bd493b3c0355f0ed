"""Forwarded ports, sockets and agents, and several sessions over one connection."""

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS, free_port
from support.ssh.sshd_process import Server, StartServer, eventually

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024
PATIENCE = 20.0


@contextmanager
def echo_service(listener: socket.socket) -> Iterator[None]:
    """Sends back, turned to upper case, whatever it is sent."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)


def _answer(connection: socket.socket) -> None:
    with connection, suppress(ConnectionError):  # whoever goes away mid-sentence is no fault of the service
        while data := connection.recv(65536):
            connection.sendall(data.upper())


@pytest.fixture
def service() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    with echo_service(listener):
        yield listener.getsockname()[1]


@contextmanager
def forwarding(server: Server, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    ssh = server.start(options=("-N", "-v", "-o", "ExitOnForwardFailure=yes", *options), stderr=subprocess.PIPE)
    try:
        yield ssh
    finally:
        ssh.kill()
        ssh.wait()
        assert ssh.stderr is not None
        ssh.stderr.close()


def wait_for_line(ssh: subprocess.Popen[bytes], pattern: str) -> re.Match[str]:
    assert ssh.stderr is not None
    for line in ssh.stderr:
        if found := re.search(pattern, line.decode()):
            return found
    raise AssertionError(f"ssh never said {pattern!r}")


def ask(connect: Callable[[], socket.socket], data: bytes = b"hello") -> bytes:
    """Send, say that this is all, and read the whole answer."""
    with connect() as connection:

        def send() -> None:
            with suppress(OSError):  # the reader sees it, too
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        sender.join()
        return answer


def to_port(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def to_path(path: Path) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            raise
        return connection

    return connect


def answers(connect: Callable[[], socket.socket]) -> bool:
    try:
        return ask(connect) == b"HELLO"
    except OSError:
        return False


def test_a_local_port_leads_to_the_dev_server(server: Server, service: int) -> None:
    port = free_port()
    with forwarding(server, "-L", f"{port}:localhost:{service}"):
        eventually(lambda: answers(to_port(port)))
        data = b"a" * (5 * MEBIBYTE)
        assert ask(to_port(port), data) == data.upper()


def test_a_remote_port_leads_back_to_the_client(server: Server, service: int) -> None:
    with forwarding(server, "-R", f"0:127.0.0.1:{service}") as ssh:
        port = int(wait_for_line(ssh, r"Allocated port (\d+)")[1])
        assert ask(to_port(port)) == b"HELLO"
        data = b"b" * (5 * MEBIBYTE)
        assert ask(to_port(port), data) == data.upper()
    eventually(lambda: not answers(to_port(port)))


@NEEDS_OTHER_ADDRESS
@pytest.mark.parametrize("address", ["*", "0.0.0.0", "127.0.0.1", "localhost", "192.0.2.1"])
def test_a_remote_port_is_reached_from_this_machine_alone(server: Server, service: int, address: str) -> None:
    port = free_port()
    with forwarding(server, "-R", f"{address}:{port}:127.0.0.1:{service}") as ssh:
        wait_for_line(ssh, "remote forward success")
        assert ask(to_port(port)) == b"HELLO"
        with socket.socket() as anywhere:  # fails while somebody else listens on all addresses
            anywhere.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            anywhere.bind((OTHER_ADDRESS, port))
            anywhere.listen()


def test_a_remote_port_in_use_is_refused(server: Server, service: int) -> None:
    result = server.ssh(options=("-N", "-o", "ExitOnForwardFailure=yes", "-R", f"{service}:127.0.0.1:1"))
    assert b"remote port forwarding failed" in result.stderr


def test_a_socks_proxy_leads_through_the_dev_server(server: Server, service: int) -> None:
    port = free_port()

    def through_proxy() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        connection.sendall(b"\x05\x01\x00")
        assert connection.recv(2) == b"\x05\x00"
        connection.sendall(b"\x05\x01\x00\x03\x09localhost" + service.to_bytes(2, "big"))
        assert connection.recv(10)[:2] == b"\x05\x00"
        return connection

    with forwarding(server, "-D", f"127.0.0.1:{port}"):
        eventually(lambda: answers(through_proxy))


def test_standard_input_and_output_can_be_a_connection(server: Server, service: int) -> None:
    assert server.ssh(options=("-W", f"127.0.0.1:{service}"), stdin=b"jump").stdout == b"JUMP"


def test_such_a_connection_is_over_when_both_sides_have_ended_the_other_one_first(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        with server.start(options=("-W", there), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"goodbye")
                assert ssh.stdin is not None and ssh.stdout is not None
                assert ssh.stdout.read() == b"goodbye"
                ssh.stdin.close()
                assert ssh.wait(PATIENCE) == 0
            finally:
                ssh.kill()


def test_a_connection_that_cannot_be_made_is_told(server: Server) -> None:
    result = server.ssh(options=("-W", f"127.0.0.1:{free_port()}"), stdin=b"jump")
    assert result.returncode != 0
    assert b"open failed" in result.stderr


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0", "::ffff:127.0.0.1"])
def test_a_port_of_this_machine_that_is_refused_is_refused_under_every_name(
    start_server: StartServer, service: int, name: str
) -> None:
    server = start_server(closed_ports=[service])
    result = server.ssh(options=("-W", f"[{name}]:{service}"), stdin=b"jump")
    assert result.stdout == b""
    assert b"open failed" in result.stderr


def test_a_port_that_is_refused_is_refused_through_every_kind_of_forward(
    start_server: StartServer, service: int
) -> None:
    """-L and -D ask the server for the same thing as -W; a client may ask for it in all of these ways."""
    server = start_server(closed_ports=[service])
    plain, socks = free_port(), free_port()
    with forwarding(server, "-L", f"{plain}:localhost:{service}", "-D", f"127.0.0.1:{socks}") as ssh:
        wait_for_line(ssh, "Entering interactive session")
        assert not answers(to_port(plain))
        with socket.create_connection(("127.0.0.1", socks), timeout=PATIENCE) as asking:
            asking.sendall(b"\x05\x01\x00")
            assert asking.recv(2) == b"\x05\x00"
            asking.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + service.to_bytes(2, "big"))
            assert asking.recv(10)[:2] != b"\x05\x00"


METADATA = [
    "169.254.169.254", "169.254.170.2", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "[fd20:ce::254]",
    "[64:ff9b::a9fe:a9fe]", "2852039166", "0xa9fea9fe", "169.254.43518",
]  # fmt: skip


@pytest.mark.parametrize("name", METADATA)
def test_nobody_is_led_to_where_clouds_tell_secrets(server: Server, name: str) -> None:
    """By whatever name: the last ones are names that this system's resolver knows for the first."""
    result = server.ssh(options=("-W", f"{name}:80"), stdin=b"GET / HTTP/1.0\r\n\r\n")
    assert result.stdout == b""
    assert b"administratively prohibited" in result.stderr


def test_a_name_with_several_addresses_leads_to_the_first_that_answers(server: Server) -> None:
    """localhost is often two addresses, and most servers listen on one of them."""
    assert any(family == socket.AF_INET for family, *_ in socket.getaddrinfo("localhost", 80))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with echo_service(listener):
        assert server.ssh(options=("-W", f"localhost:{port}"), stdin=b"jump").stdout == b"JUMP"


def test_a_local_socket_leads_to_one_in_the_dev_server(server: Server) -> None:
    theirs, ours = server.folder / "theirs", server.folder / "ours"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(theirs))
    listener.listen()
    with echo_service(listener), forwarding(server, "-L", f"{ours}:{theirs}"):
        eventually(lambda: answers(to_path(ours)))


def test_a_remote_socket_leads_back_is_private_and_replaces_one_left_behind(server: Server, service: int) -> None:
    path = server.folder / "remote"
    for _ in range(2):  # the second finds the socket of the first
        with forwarding(server, "-R", f"{path}:127.0.0.1:{service}"):
            eventually(lambda: answers(to_path(path)))
            assert path.stat().st_mode & 0o077 == 0
        eventually(lambda: not answers(to_path(path)))


def test_a_remote_socket_in_use_is_refused(server: Server, service: int) -> None:
    path = server.folder / "remote"
    with forwarding(server, "-R", f"{path}:127.0.0.1:{service}"):
        eventually(lambda: answers(to_path(path)))
        options = ("-N", "-o", "ExitOnForwardFailure=yes", "-R", f"{path}:127.0.0.1:{service}")
        assert b"remote port forwarding failed" in server.ssh(options=options).stderr
        assert answers(to_path(path))


def test_the_agent_is_forwarded_and_its_socket_goes_with_the_connection(server: Server) -> None:
    if shutil.which("ssh-agent") is None:
        pytest.skip("ssh-agent is not installed")
    agent_socket = server.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
    try:
        eventually(agent_socket.exists)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(agent_socket)}
        subprocess.run(["ssh-add", "-q", str(server.key)], env=environment, check=True)
        command = ["ssh", "-A", "-o", f"IdentityAgent={agent_socket}", *server.command()[1:]]
        result = subprocess.run(
            [*command, "echo $SSH_AUTH_SOCK; ssh-add -L"], env=environment, capture_output=True, timeout=30, check=False
        )
        path, key = result.stdout.decode().split("\n", 1)
        assert key.split()[:2] == server.authorized_keys.read_text().split()[:2]
        eventually(lambda: not Path(path).exists())
    finally:
        agent.kill()
        agent.wait()


def test_many_sessions_share_one_connection(server: Server) -> None:
    control = ("-o", f"ControlPath={server.folder}/control")
    with forwarding(server, "-M", *control):
        eventually((server.folder / "control").exists)
        sessions = [server.start(f"sleep 0.2; echo {n}", options=control, stdout=subprocess.PIPE) for n in range(8)]
        connections = {server.ssh("echo $SSH_CONNECTION", options=control).stdout for _ in range(2)}
        assert [session.communicate()[0] for session in sessions] == [f"{n}\n".encode() for n in range(8)]
        assert len(connections) == 1
        assert server.ssh("true", options=("-O", "check", *control)).returncode == 0
