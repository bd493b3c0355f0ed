"""The unix sockets through which API and proxy on one machine pass connections to each other.

It is light: `gpu-dev up` and `down` load it.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

API_SOCKET, PROXY_SOCKET = "api.sock", "proxy.sock"
"""Where API and proxy receive connections from each other, in a folder of this user."""
_MAX_PATH_BYTES = 100
"""Of a unix socket's address: Linux accepts 107 bytes, macOS 103."""


def is_received(path: Path) -> bool:
    """Whether a process receives connections there."""
    try:
        with socket.socket(socket.AF_UNIX) as line, short_path(path) as address:
            line.setblocking(False)
            line.connect(address)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """An address for the socket: that of a long path goes through its folder's descriptor."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
