"""A user who stalls others: a dev server and Jupyter that send tiny pieces without end, and clients that ask for them
or send such themselves. Or, for comparison, one that is as busy and sends nothing.

Arguments: the attack, the dev server's port, the proxy's port. Says when it begins, and goes on until it is killed."""

import base64
import contextlib
import hashlib
import socket
import sys
import threading
from collections.abc import Callable

JOB = "00000000-0000-4000-8000-000000000001"
SECRET = "gpudevt_0123456789abcdef"
_BATCH = 3000
_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
_ACCEPT = base64.b64encode(hashlib.sha1(f"{_KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
_JUPYTER = f"/v1/jobs/{JOB}/jupyter"
_UPGRADE = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {_KEY}\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_SWITCHED = f"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {_ACCEPT}\r\n\r\n"
_ENDLESS = {
    b"interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    b"chunks": (_CHUNKED, b"1\r\nx\r\n"),
    b"frames": (_SWITCHED.encode(), b"\x82\x00"),
}
"""What Jupyter answers, by the path: once, then for ever."""


def dev_server(line: socket.socket) -> None:
    with contextlib.suppress(OSError), line:
        if (head := line.recv(65536)).startswith(b"GET"):
            first, piece = next(answer for name, answer in _ENDLESS.items() if name in head)
            line.sendall(first)
            while True:
                line.sendall(piece * _BATCH)
        while line.recv(2**20):
            pass


def ask_jupyter(port: int, path: str, more: str = "") -> None:
    """Takes whatever is answered; asks again when that ends."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as line:
            cookie = f"Cookie: gpudev_jupyter={SECRET}\r\nOrigin: http://proxy\r\n"
            line.sendall(f"GET {_JUPYTER}/{path} HTTP/1.1\r\nHost: proxy\r\n{cookie}{more}\r\n".encode())
            while line.recv(2**20):
                pass


def flood_tunnel(port: int, piece: bytes) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as line:
            head = f"GET /v1/jobs/{JOB}/ssh HTTP/1.1\r\nHost: proxy\r\nAuthorization: Bearer {SECRET}\r\n{_UPGRADE}\r\n"
            line.sendall(head.encode())
            threading.Thread(target=dev_server, args=(line.dup(),), daemon=True).start()  # takes the answers
            while True:
                line.sendall(piece * _BATCH)


def burn(_port: int) -> None:
    while True:
        hashlib.sha256(b"x" * 4096).digest()


ATTACKS: dict[str, Callable[[int], None]] = {
    "interim responses": lambda port: ask_jupyter(port, "interim", "Connection: close\r\n"),
    "one-byte chunks": lambda port: ask_jupyter(port, "chunks"),
    "empty frames of Jupyter": lambda port: ask_jupyter(port, "frames", _UPGRADE),
    "one-byte frames in a tunnel": lambda port: flood_tunnel(port, b"\x82\x81\0\0\0\0x"),
    "empty fragments in a tunnel": lambda port: flood_tunnel(port, b"\x00\x80\0\0\0\0"),
    "pings in a tunnel": lambda port: flood_tunnel(port, b"\x89\x80\0\0\0\0"),
    "none": burn,
}


def main(attack: str, dev_server_port: str, proxy_port: str) -> None:
    listener = socket.create_server(("127.0.0.1", int(dev_server_port)), backlog=64)

    def accept() -> None:
        while True:
            threading.Thread(target=dev_server, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print("begun", flush=True)
    ATTACKS[attack](int(proxy_port))


if __name__ == "__main__":
    main(*sys.argv[1:])
