"""WebSocket frames of both sides, and the client's pipe: what is said arrives, however the network cuts it."""

import errno
import os
import socket
import ssl
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.utils import apply_mask

from gpudev.adapters.tls import ensure_certificate
from gpudev.cli import stdio_pipe
from gpudev.ports.clock import SystemClock
from gpudev.sdk.errors import Unreachable
from gpudev.sdk.http.transport import HttpRequest, HttpTransport, WebSocketConnection
from gpudev.settings import Settings
from gpudev.wire import websocket

PAYLOADS = st.lists(st.one_of(st.binary(max_size=300), st.sampled_from([b"x" * 126, b"y" * 65_536])), max_size=8)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[a:b] for a, b in pairwise(marks)]


@settings(deadline=None, max_examples=60)
@given(PAYLOADS, st.lists(st.integers(0, 10**6), max_size=10))
def test_what_a_server_says_is_heard_however_it_is_cut(payloads: list[bytes], places: list[int]) -> None:
    stream = (
        b"".join(websocket.server_data_header(len(payload)) + payload for payload in payloads)
        + b"\x89\x02hi\x88\x05\x0f\xa1bye"
    )
    reader, heard, ends, others = websocket.FrameReader(), b"", 0, []
    for part in cut(stream, places):
        for event in reader.read(memoryview(part)):
            match event:
                case websocket.DataEvent(payload):
                    heard += payload
                case websocket.EndEvent():
                    ends += 1
                case websocket.ControlEvent(opcode, payload):
                    others.append((opcode, payload))
    assert heard == b"".join(payloads)
    assert ends == payloads.count(b"")
    assert others == [(websocket.PING, b"hi"), (websocket.CLOSE, b"\x0f\xa1bye")]
    assert websocket.parse_close(others[1][1]) == websocket.ClosePayload(4001, "bye")


@settings(deadline=None, max_examples=60)
@given(PAYLOADS, st.lists(st.integers(0, 10**6), max_size=10), st.binary(min_size=4, max_size=4))
def test_what_a_client_says_is_heard_however_it_is_cut_and_masked(
    payloads: list[bytes], places: list[int], mask: bytes
) -> None:
    stream = b""
    for payload in payloads:
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        stream += websocket.client_data_header(len(payload))[:-4] + mask + masked + websocket.client_pong(b"p")
    reader, heard, ends, others = websocket.FrameReader(apply_mask), b"", 0, []
    for part in cut(stream, places):
        for event in reader.read(part):
            match event:
                case websocket.DataEvent(data):
                    heard += data
                case websocket.EndEvent():
                    ends += 1
                case websocket.ControlEvent(frame=frame):
                    others.append(frame)
    assert heard == b"".join(payloads)
    assert ends == payloads.count(b"")
    assert others == [websocket.client_pong(b"p")] * len(payloads)


@pytest.mark.parametrize(
    "stream", [b"\x82\x05hello", b"\xc2\x85\0\0\0\0hello", b"\x83\x80\0\0\0\0", b"\x81\x82\0\0\0\0hi"], ids=bytes.hex
)
def test_what_breaks_the_rules_is_left_to_the_library(stream: bytes) -> None:
    """Frames that are not masked, or of a kind that means nothing here: from there on nothing counts as bytes."""
    stream += b"\x82\x82\0\0\0\0no"
    with pytest.raises(websocket.BrokenProtocol) as broken:
        list(websocket.FrameReader(apply_mask).read(stream))
    assert broken.value.rest == stream


@pytest.mark.parametrize("stream", [b"HTTP/1.1 408", b"\x82\x85\0\0\0\0hello", b"\x89\x7e\0\x80", b"\x09\x01x"])
def test_nonsense_is_told_from_a_connection(stream: bytes) -> None:
    with pytest.raises(websocket.BrokenProtocol):
        list(websocket.FrameReader().read(memoryview(stream)))


class Talk:
    """A pipe at work: what is written to `say` goes out through the line, what comes in is read from `hear`."""

    def __init__(self, line: socket.socket) -> None:
        source, self.say = os.pipe()
        self.hear, sink = os.pipe()
        self.result: object = None
        self._thread = threading.Thread(target=self._run, args=(line, source, sink), daemon=True)
        self._thread.start()

    def _run(self, line: socket.socket, source: int, sink: int) -> None:
        try:
            self.result = stdio_pipe.StdioPipe(line, stdio_pipe.WebSocketFraming(), source, sink).run()
        except Unreachable as error:
            self.result = error
        finally:
            os.close(sink)
            os.close(source)

    def end(self) -> object:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.result


class Echo:
    """Says everything back until an empty message comes, then goodbye. It asks often whether the other is there."""

    def __init__(self, line: socket.socket) -> None:
        self.pings, self.others = 0, b""
        self._line = line
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        reader = websocket.FrameReader(apply_mask)
        while data := self._line.recv(100_000):
            self._line.sendall(b"\x89\x02hi")
            self.pings += 1
            for event in reader.read(data):
                match event:
                    case websocket.DataEvent(payload):
                        self._line.sendall(websocket.server_data_header(len(payload)) + payload)
                    case websocket.ControlEvent(frame=frame):
                        self.others += frame
                    case websocket.EndEvent():
                        self._line.sendall(websocket.server_data_header(0) + b"\x88\x05\x0f\xa1bye")
                        return

    def end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def in_tls(ours: socket.socket, theirs: socket.socket, folder: Path) -> tuple[socket.socket, socket.socket]:
    files = ensure_certificate(Settings(state_dir=folder), "127.0.0.1", SystemClock().now())
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(files.certificate, files.key)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    wrapped: list[socket.socket] = []
    accepting = threading.Thread(target=lambda: wrapped.append(server.wrap_socket(theirs, server_side=True)))
    accepting.start()
    secured = client.wrap_socket(ours)
    accepting.join(20)
    return secured, wrapped[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["unix", "tcp", "tls"])
def test_a_pipe_carries_more_than_fits_into_any_buffer(way: str, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair() if way == "unix" else tcp_pair()
    if way == "tls":
        ours, theirs = in_tls(ours, theirs, tmp_path)
    echo = Echo(theirs)
    talk = Talk(ours)
    content = os.urandom(5_000_000)

    def write() -> None:
        with os.fdopen(talk.say, "wb") as file:
            file.write(content)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    with os.fdopen(talk.hear, "rb") as file:
        assert file.read() == content
    assert talk.end() == websocket.ClosePayload(4001, "bye")
    writing.join(20)
    echo.end()
    assert echo.others == websocket.client_pong(b"hi") * (len(echo.others) // len(websocket.client_pong(b"hi"))), (
        "whole frames"
    )
    assert len(echo.others) > 0
    ours.close()
    theirs.close()


def read_head(line: socket.socket) -> str:
    head = b""
    while not head.endswith(b"\r\n\r\n") and (piece := line.recv(1)):
        head += piece
    return head.decode()


def test_a_networks_own_proxy_is_asked_for_a_tunnel_since_it_would_pass_on_no_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    heads: list[str] = []

    def play() -> None:
        line, _ = listener.accept()
        line.settimeout(20)
        with line:
            heads.append(read_head(line))
            line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            heads.append(read_head(line))
            (key,) = (part for part in heads[-1].split("\r\n") if part.startswith("Sec-WebSocket-Key: "))
            accept = websocket.accept_value(key.partition(": ")[2])
            agreed = "Upgrade: websocket\r\nConnection: Upgrade"
            line.sendall(f"HTTP/1.1 101 OK\r\n{agreed}\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())

    playing = threading.Thread(target=play)
    playing.start()
    monkeypatch.setenv("http_proxy", f"http://ada:word@127.0.0.1:{listener.getsockname()[1]}")
    opened = HttpTransport("http://gpu.example.com:81").open_websocket(HttpRequest("GET", "/v1/jobs/x/ssh"))
    playing.join(20)
    listener.close()
    assert isinstance(opened, WebSocketConnection)
    opened.socket.close()
    assert heads[0].startswith("CONNECT gpu.example.com:81 HTTP/1.")
    assert "Proxy-Authorization: Basic " in heads[0]
    assert heads[1].startswith("GET /v1/jobs/x/ssh HTTP/1.1\r\n")
    assert "Host: gpu.example.com:81\r\n" in heads[1]
    assert "Proxy-Authorization" not in heads[1], "that is for the proxy alone"


def test_a_connection_that_is_cut_is_told_as_that() -> None:
    ours, theirs = socket.socketpair()
    talk = Talk(ours)
    theirs.sendall(websocket.server_data_header(5) + b"hello")
    assert os.read(talk.hear, 10) == b"hello"
    theirs.close()
    assert isinstance(talk.end(), Unreachable)
    os.close(talk.say)
    os.close(talk.hear)
    ours.close()


def test_a_pipe_whose_other_end_has_gone_waits_for_its_own_without_being_busy() -> None:
    line, peer = socket.socketpair()
    source, ours = os.pipe()
    sink = os.open(os.devnull, os.O_WRONLY)
    peer.close()
    closing = threading.Timer(0.6, os.close, (ours,))
    closing.start()
    before = time.thread_time()
    stdio_pipe.StdioPipe(line, stdio_pipe.PlainFraming(), source, sink).run()
    assert time.thread_time() - before < 0.2
    closing.join()
    line.close()
    for descriptor in (source, sink):
        os.close(descriptor)


def test_where_the_kernel_cannot_move_bytes_they_are_read_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "splice", refuse, raising=False)
    ours, theirs = tcp_pair()
    echo, talk = Echo(theirs), Talk(ours)
    os.write(talk.say, b"x" * 60_000)
    os.close(talk.say)
    with os.fdopen(talk.hear, "rb") as file:
        assert file.read() == b"x" * 60_000
    assert talk.end() == websocket.ClosePayload(4001, "bye")
    echo.end()
    ours.close()
    theirs.close()
