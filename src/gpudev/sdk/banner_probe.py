"""Probes whether an SSH server responds at an address. Few imports: `proxy-command` uses it."""

import socket

PROBE_SECONDS = 1.0
"""Covers intercontinental latency; gives up quickly behind a firewall."""


def open_if_ssh(host: str, port: int, seconds: float = PROBE_SECONDS) -> socket.socket | None:
    """A connection with nothing read from it; None: not an SSH server. Raises OSError."""
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
