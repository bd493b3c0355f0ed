"""Forwarded ports and sockets: something to lead to, and somebody who goes there."""

import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.ssh.ssh_server import SshServer

PATIENCE = 20.0
Connect = Callable[[], socket.socket]


@contextmanager
def echo_service(listener: socket.socket, seen: list[int] | None = None) -> Iterator[None]:
    """Sends back, turned to upper case, whatever it is sent; `seen` are the uids of those who came by a unix socket."""

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


@contextmanager
def serving_echo() -> Iterator[int]:
    """The port of such a service."""
    listener = socket.create_server(("127.0.0.1", 0))
    with echo_service(listener):
        yield listener.getsockname()[1]


def unix_listener(path: Path, mode: int = 0o666) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen()
    return listener


@contextmanager
def forwarding(server: SshServer, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    ssh = server.start(options=("-N", "-v", "-o", "ExitOnForwardFailure=yes", *options), stderr=subprocess.PIPE)
    try:
        yield ssh
    finally:
        ssh.kill()
        ssh.wait()
        assert ssh.stderr is not None
        ssh.stderr.close()


def is_refused(server: SshServer, *options: str) -> bool:
    """Whether a forwarding that the server would listen for is refused."""
    result = server.ssh(options=("-N", "-o", "ExitOnForwardFailure=yes", *options))
    return b"remote port forwarding failed" in result.stderr


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


def answers(connect: Connect) -> bool:
    try:
        return ask(connect) == b"HELLO"
    except OSError:
        return False


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
