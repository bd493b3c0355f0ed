"""The short way of `gpu-dev proxy-command`: where everything is as usual it works, and it leaves the rest alone."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudev.cli import proxy_tunnel
from gpudev.sdk.user_files import KEY_VARIABLE
from gpudev.wire import websocket
from support.ports import free_port

JOB = "3f2a9c1e-0000-4000-8000-000000000001"
KEY = "gpudev_" + "k" * 43
TOKEN = "gpudevt_" + "t" * 43
GREETING = b"\x82\x0aSSH-2.0-x\n"
Answer = Callable[[bytes], bytes]


def token_answer(**changes: object) -> bytes:
    told = {"token": TOKEN, "reservation_id": JOB, "expires_at": "2027-01-01T00:00:00Z", "url": None, **changes}
    body = json.dumps(told).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def agreement(head: bytes) -> bytes:
    (key,) = (line[19:].decode() for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: "))
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {websocket.accept_value(key)}\r\n\r\n".encode()
        + GREETING
    )


class Played:
    """A server that answers requests, by what they begin with, and remembers all it heard."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Answer] = {b"POST": lambda _: token_answer(), b"GET": agreement}
        self.heard: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            # A client that closes with bytes unread resets the connection.
            with line, contextlib.suppress(ConnectionError):
                line.settimeout(20)
                self._answer(line)

    def _answer(self, line: socket.socket) -> None:
        received = b""
        while True:
            data = line.recv(65536)
            if not data:
                return
            received += data
            while b"\r\n\r\n" in received:
                head, _, received = received.partition(b"\r\n\r\n")
                self.heard.append(head)
                said = self.answers[head.split(b" ")[0]](head)
                if not said:
                    return
                line.sendall(said)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)


@pytest.fixture
def server() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), KEY_VARIABLE: KEY}


def test_a_token_and_a_session_over_one_connection(server: Played, env: dict[str, str]) -> None:
    found = proxy_tunnel.open_fast_connection(JOB, server.url, env)
    assert found is not None
    assert found.received == GREETING
    found.socket.close()
    asked, upgraded = server.heard
    assert asked.startswith(f"POST /v1/jobs/{JOB}/proxy-token HTTP/1.1\r\n".encode())
    assert f"Authorization: Bearer {KEY}".encode() in asked
    assert upgraded.startswith(f"GET /v1/jobs/{JOB}/ssh HTTP/1.1\r\n".encode())
    assert f"Authorization: Bearer {TOKEN}".encode() in upgraded
    assert server.connections == 1


def test_a_proxy_elsewhere_is_shown_the_token_and_never_the_key(server: Played, env: dict[str, str]) -> None:
    elsewhere = Played()
    try:
        server.answers[b"POST"] = lambda _: token_answer(url=elsewhere.url)
        found = proxy_tunnel.open_fast_connection(JOB, server.url, env)
        assert found is not None
        found.socket.close()
        (heard,) = elsewhere.heard
        assert TOKEN.encode() in heard
        assert KEY.encode() not in heard
    finally:
        elsewhere.close()


def test_the_key_that_is_kept_is_used(server: Played, env: dict[str, str], tmp_path: Path) -> None:
    del env[KEY_VARIABLE]
    assert proxy_tunnel.open_fast_connection(JOB, server.url, env) is None
    assert server.heard == []
    kept = tmp_path / ".gpu-dev" / "credentials"
    kept.parent.mkdir()
    kept.write_text(json.dumps({server.url: {"api_key": KEY}}))
    kept.chmod(0o644)
    assert proxy_tunnel.open_fast_connection(JOB, server.url, env) is None, "others can read it"
    kept.chmod(0o600)
    found = proxy_tunnel.open_fast_connection(JOB, server.url, env)
    assert found is not None
    found.socket.close()


def job_answer(**told: object) -> bytes:
    body = json.dumps({"job_id": JOB, **told}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def serve_job(server: Played, job: bytes) -> None:
    """What a GET means is in its path."""
    server.answers[b"GET"] = lambda head: agreement(head) if b"/ssh " in head else job


def greet(dev_server: socket.socket) -> None:
    line, _ = dev_server.accept()
    with line:
        line.sendall(b"SSH-2.0-x\r\n")


def test_where_the_dev_server_greets_the_way_is_straight(server: Played, env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dev_server:
        serve_job(server, job_answer(node_ip="127.0.0.1", node_port=dev_server.getsockname()[1]))
        greeting = threading.Thread(target=greet, args=(dev_server,))
        greeting.start()
        found = proxy_tunnel.open_fast_connection(JOB, server.url, env, auto=True)
        greeting.join(20)
        assert found is not None
        with found.socket:
            assert found.received is None
            assert found.socket.recv(20) == b"SSH-2.0-x\r\n"
    assert len(server.heard) == 1, "and no token is asked for"


def test_where_it_does_not_the_same_connection_goes_on_to_a_session(server: Played, env: dict[str, str]) -> None:
    serve_job(server, job_answer(node_ip="127.0.0.1", node_port=free_port()))
    found = proxy_tunnel.open_fast_connection(JOB, server.url, env, auto=True)
    assert found is not None
    found.socket.close()
    assert found.received == GREETING
    assert [heard.split()[0] for heard in server.heard] == [b"GET", b"POST", b"GET"]
    assert server.connections == 1


@pytest.mark.parametrize("place", [{"node_ip": None, "node_port": None}, {"node_ip": "127.0.0.1", "node_port": "22"}])
def test_what_has_no_address_is_left_to_the_whole_client(
    server: Played, env: dict[str, str], place: dict[str, object]
) -> None:
    serve_job(server, job_answer(**place))
    assert proxy_tunnel.open_fast_connection(JOB, server.url, env, auto=True) is None
    assert len(server.heard) == 1


UNUSUAL: dict[str, tuple[bytes, Answer]] = {
    "a key that has ended": (b"POST", lambda _: b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"),
    "a redirect": (b"POST", lambda _: b"HTTP/1.1 307 X\r\nlocation: http://evil.example\r\ncontent-length: 0\r\n\r\n"),
    "an answer without a length": (b"POST", lambda _: token_answer().replace(b"content-length", b"x-length")),
    "a length that is none": (b"POST", lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n{}"),
    "another protocol": (b"POST", lambda _: b"SSH-2.0-OpenSSH\r\n\r\n"),
    "an answer that is no JSON": (b"POST", lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n<p>"),
    "an answer that says something else": (b"POST", lambda _: token_answer(token=None)),
    "a token that would be a header": (b"POST", lambda _: token_answer(token="x\r\nX-Evil: 1")),
    "a head without an end": (b"POST", lambda _: b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000),
    "a connection that is cut": (b"POST", lambda _: b""),
    "a refused session": (b"GET", lambda _: b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n"),
    "an agreement to something else": (b"GET", lambda _: b"HTTP/1.1 101 X\r\nSec-WebSocket-Accept: x\r\n\r\n"),
    "a session that is cut": (b"GET", lambda _: b""),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_left_to_the_whole_client(server: Played, env: dict[str, str], what: str) -> None:
    method, answer = UNUSUAL[what]
    server.answers[method] = answer
    assert proxy_tunnel.open_fast_connection(JOB, server.url, env) is None
    if method == b"POST":
        assert all(not heard.startswith(b"GET") for heard in server.heard)


def test_where_another_proxy_is_on_the_way_nothing_is_said(env: dict[str, str]) -> None:
    env["HTTP_PROXY"] = "http://proxy.example:3128"
    assert proxy_tunnel.open_fast_connection(JOB, "http://gpu.invalid", env) is None


@pytest.mark.slow
def test_next_to_nothing_is_loaded(server: Played, env: dict[str, str]) -> None:
    """And the session ends as the server says."""
    server.answers[b"GET"] = lambda head: agreement(head) + b"\x88\x02\x03\xe8"
    script = (
        "import sys\nfrom gpudev.cli.main import run\ncode = run(sys.argv[1:])\n"
        "sys.stderr.write(f'{code} ' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "proxy-command", "--api-url", server.url, JOB],
        env={**env, "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=60,
    )
    code, *modules = done.stderr.decode().split()
    assert (code, done.stdout) == ("0", b"SSH-2.0-x\n")
    assert not {"http.client", "email", "ssl", "dataclasses", "inspect", "click", "threading"} & set(modules)
