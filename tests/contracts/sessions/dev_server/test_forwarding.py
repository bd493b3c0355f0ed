"""Forwarded ports, sockets and agents, and several sessions over one connection."""

import os
import re
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.fixtures.dev_server import Build
from support.ports import free_port
from support.ssh.dev_server_container import CONTAINER, CONTAINER_ENVIRONMENT, DEV, DevServer
from support.ssh.sshd_process import eventually

pytestmark = pytest.mark.slow

MEBIBYTE = 1024 * 1024
PATIENCE = 20.0
API_SERVER = CONTAINER_ENVIRONMENT["KUBERNETES_SERVICE_HOST"]
Connect = Callable[[], socket.socket]


@contextmanager
def echo_service(listener: socket.socket, seen: list[int] | None = None) -> Iterator[None]:
    """Sends back, turned to upper case, whatever it is sent; `seen` are the uids of those who came."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # whoever goes away mid-sentence is no fault of the service
            if seen is not None:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                seen.append(struct.unpack("3i", credentials)[1])
            while data := connection.recv(65536):
                connection.sendall(data.upper())

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=10)


@pytest.fixture
def service() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    with echo_service(listener):
        yield listener.getsockname()[1]


@contextmanager
def forwarding(server: DevServer, *options: str) -> Iterator[subprocess.Popen[bytes]]:
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


def ask(connect: Connect, data: bytes = b"hello") -> bytes:
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


def to_port(port: int) -> Connect:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def to_path(path: Path) -> Connect:
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


def answers(connect: Connect) -> bool:
    try:
        return ask(connect) == b"HELLO"
    except OSError:
        return False


def unix_listener(path: Path, mode: int = 0o666) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen()
    return listener


def test_a_local_port_leads_to_the_dev_server(server: DevServer, service: int) -> None:
    port = free_port()
    with forwarding(server, "-L", f"{port}:localhost:{service}"):
        eventually(lambda: answers(to_port(port)))
        data = b"a" * (5 * MEBIBYTE)
        assert ask(to_port(port), data) == data.upper()


def test_a_remote_port_leads_back_to_the_client(server: DevServer, service: int) -> None:
    with forwarding(server, "-R", f"0:127.0.0.1:{service}") as ssh:
        port = int(wait_for_line(ssh, r"Allocated port (\d+)")[1])
        assert ask(to_port(port)) == b"HELLO"
        data = b"b" * (5 * MEBIBYTE)
        assert ask(to_port(port), data) == data.upper()
    eventually(lambda: not answers(to_port(port)))


@pytest.mark.parametrize("address", ["*", "0.0.0.0", "127.0.0.1", "localhost", "192.0.2.1"])
def test_a_remote_port_is_reached_from_this_machine_alone(container: DevServer, service: int, address: str) -> None:
    port = free_port()
    with forwarding(container, "-R", f"{address}:{port}:127.0.0.1:{service}") as ssh:
        wait_for_line(ssh, "remote forward success")
        assert ask(to_port(port)) == b"HELLO"
        with socket.socket() as anywhere:  # fails while somebody else listens on all addresses
            anywhere.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            anywhere.bind(("127.0.0.2", port))
            anywhere.listen()


def test_a_remote_port_in_use_or_reserved_for_root_is_refused(container: DevServer, service: int) -> None:
    options = ("-N", "-o", "ExitOnForwardFailure=yes", "-R")
    assert b"remote port forwarding failed" in container.ssh(options=(*options, f"{service}:127.0.0.1:1")).stderr
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 999:
        assert b"remote port forwarding failed" in container.ssh(options=(*options, "999:127.0.0.1:1")).stderr


def test_a_remote_port_can_be_given_up_and_taken_again(container: DevServer, service: int, tmp_path: Path) -> None:
    port = free_port()
    control = ("-o", f"ControlPath={tmp_path}/c")
    forward = ("-R", f"{port}:127.0.0.1:{service}")
    with forwarding(container, "-M", *control):
        eventually((tmp_path / "c").exists)
        for _ in range(2):
            assert container.ssh(options=("-O", "forward", *forward, *control)).returncode == 0
            assert answers(to_port(port))
            assert container.ssh(options=("-O", "cancel", *forward, *control)).returncode == 0
            eventually(lambda: not answers(to_port(port)))


def test_a_socks_proxy_leads_through_the_dev_server(server: DevServer, service: int) -> None:
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


def test_standard_input_and_output_can_be_a_connection(server: DevServer, service: int) -> None:
    assert server.ssh(options=("-W", f"127.0.0.1:{service}"), stdin=b"jump").stdout == b"JUMP"


def test_such_a_connection_is_over_when_both_sides_have_ended_the_other_one_first(server: DevServer) -> None:
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


@pytest.mark.parametrize(
    "name", ["169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "10.0.0.1", "sneaky"]
)
def test_nobody_is_led_to_where_clouds_tell_secrets(build: Build, name: str) -> None:
    """By whatever name; nor to the API server of the cluster that runs the dev server."""
    builder = build(CONTAINER)
    with (builder.root / "etc" / "hosts").open("a") as hosts:
        hosts.write("169.254.169.254 sneaky\n")
    result = builder.start().ssh(options=("-W", f"{name}:80"), stdin=b"GET / HTTP/1.0\r\n\r\n")
    assert result.stdout == b""
    assert b"administratively prohibited" in result.stderr


def test_a_connection_that_cannot_be_made_is_told(server: DevServer) -> None:
    result = server.ssh(options=("-W", f"127.0.0.1:{free_port()}"), stdin=b"jump")
    assert result.returncode != 0
    assert b"open failed" in result.stderr


def test_a_local_socket_leads_to_one_in_the_dev_server_and_the_person_is_seen_there(
    server: DevServer, tmp_path: Path
) -> None:
    theirs, ours = server.folder / "theirs", tmp_path / "ours"
    seen: list[int] = []
    with echo_service(unix_listener(theirs), seen), forwarding(server, "-L", f"{ours}:{server.inside(theirs)}"):
        eventually(lambda: answers(to_path(ours)))
    assert set(seen) == {server.uid}


def test_a_socket_that_the_person_may_not_use_cannot_be_used_through_a_forwarding(
    container: DevServer, tmp_path: Path
) -> None:
    theirs, ours = container.folder / "roots", tmp_path / "ours"
    seen: list[int] = []
    with echo_service(unix_listener(theirs, 0o600), seen), forwarding(container, "-L", f"{ours}:/tmp/roots") as ssh:
        eventually(ours.exists)
        assert not answers(to_path(ours))
        wait_for_line(ssh, "open failed.*permission denied")
    assert seen == []


def test_a_remote_socket_leads_back_is_private_and_replaces_one_left_behind(server: DevServer, service: int) -> None:
    path = server.folder / "remote"
    for _ in range(2):
        with forwarding(server, "-R", f"{server.inside(path)}:127.0.0.1:{service}"):
            eventually(lambda: answers(to_path(path)))
            assert path.stat().st_mode & 0o077 == 0
            assert path.stat().st_uid == server.uid
        eventually(lambda: not path.exists())
        left_behind = unix_listener(path)  # the second finds a socket that nobody listens on
        os.chown(path, server.uid, -1)
        left_behind.close()


def test_a_remote_socket_in_use_is_refused(server: DevServer, service: int) -> None:
    path = server.folder / "remote"
    forward = ("-R", f"{server.inside(path)}:127.0.0.1:{service}")
    with forwarding(server, *forward):
        eventually(lambda: answers(to_path(path)))
        options = ("-N", "-o", "ExitOnForwardFailure=yes", *forward)
        assert b"remote port forwarding failed" in server.ssh(options=options).stderr
        assert answers(to_path(path))


def test_a_remote_socket_is_not_made_where_the_person_may_not_write(container: DevServer, service: int) -> None:
    victim = container.root / "etc" / "hosts"
    for place in ("/etc/mine", "/etc/hosts", "/gpudev/bin/gpudev-devserver"):
        options = ("-N", "-o", "ExitOnForwardFailure=yes", "-R", f"{place}:127.0.0.1:{service}")
        assert b"remote port forwarding failed" in container.ssh(options=options).stderr
    assert victim.read_text().startswith("127.0.0.1")
    assert not (container.root / "etc" / "mine").exists()


def test_the_agent_is_forwarded_and_its_socket_goes_with_the_connection(server: DevServer, tmp_path: Path) -> None:
    if shutil.which("ssh-agent") is None:
        pytest.skip("NOT TESTED: ssh-agent is not installed")
    agent_socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
    try:
        eventually(agent_socket.exists)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(agent_socket)}
        subprocess.run(["ssh-add", "-q", str(server.key)], env=environment, check=True)
        command = ["ssh", "-A", "-o", f"IdentityAgent={agent_socket}", *server.command()[1:]]
        script = 'echo $SSH_AUTH_SOCK; stat -c %a:%u "$(dirname $SSH_AUTH_SOCK)"; ssh-add -L'
        result = subprocess.run([*command, script], env=environment, capture_output=True, timeout=30, check=False)
        path, folder, key = result.stdout.decode().split("\n", 2)
        assert folder == f"700:{server.uid}"
        assert key.split()[:2] == server.authorized_keys.read_text().split()[:2]
        outside = server.root / path[1:]
        eventually(lambda: not outside.parent.exists())
    finally:
        agent.kill()
        agent.wait()


def test_many_sessions_share_one_connection(server: DevServer, tmp_path: Path) -> None:
    control = ("-o", f"ControlPath={tmp_path}/c")
    with forwarding(server, "-M", *control):
        eventually((tmp_path / "c").exists)
        sessions = [server.start(f"sleep 0.2; echo {n}", options=control, stdout=subprocess.PIPE) for n in range(20)]
        connections = {server.ssh("echo $SSH_CONNECTION", options=control).stdout for _ in range(2)}
        assert [session.communicate()[0] for session in sessions] == [f"{n}\n".encode() for n in range(20)]
        assert len(connections) == 1


def test_forwarding_leaves_the_servers_own_rights_as_they_were(container: DevServer, service: int) -> None:
    """Every thread of it: one that kept the person's rights would serve the next session wrongly."""
    path = container.folder / "remote"
    for _ in range(20):
        with forwarding(container, "-R", f"/tmp/remote:127.0.0.1:{service}"):
            eventually(lambda: answers(to_path(path)))
    threads = Path(f"/proc/{container.pid}/task").glob("*/status")
    identities = {
        line for status in threads for line in status.read_text().splitlines() if line.startswith(("Uid:", "Gid:"))
    }
    assert identities == {"Uid:\t0\t0\t0\t0", "Gid:\t0\t0\t0\t0"}
    assert container.ssh("id -u").stdout == f"{DEV}\n".encode()
