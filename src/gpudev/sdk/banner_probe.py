"""Probes whether an SSH server answers at an address. Stays light."""

import socket

PROBE_SECONDS = 1.0
"""Long enough for the other side of the world; who is behind a wall waits no longer than this."""


def open_if_ssh(host: str, port: int, seconds: float = PROBE_SECONDS) -> socket.socket | None:
    """A connection to it, nothing read from it yet; None: something else answers there. Raises OSError."""
    line = socket.create_connection((host, port), timeout=seconds)
    try:
        if line.recv(4, socket.MSG_PEEK) == b"SSH-":
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.settimeout(None)
            return line
    except BaseException:
        line.close()
        raise
    line.close()
    return None
