"""Whether a dev server can be reached straight away, or only through the proxy: tried, not guessed."""

import socket

from gpudev.cli.address import is_loopback
from gpudev.wire.jobs import JobView

PROBE_SECONDS = 1.0
"""Long enough for the other side of the world; who is behind a wall waits no longer than this."""


def straight_to(job: JobView, seconds: float = PROBE_SECONDS) -> socket.socket | None:
    """A connection to its ssh server, nothing read from it yet; None: there is none to be had."""
    line = _connect(job, seconds)
    if line is None:
        return None
    try:
        if line.recv(4, socket.MSG_PEEK) == b"SSH-":
            line.settimeout(None)
            return line
    except OSError:
        pass
    line.close()
    return None


def is_reachable(job: JobView, seconds: float = PROBE_SECONDS) -> bool:
    line = straight_to(job, seconds)
    if line is not None:
        line.close()
    return line is not None


def is_elsewhere(job: JobView, api_is_local: bool) -> bool:
    """Whether its address means nothing here: a dev server on the loopback of another machine."""
    return is_loopback(job.node_ip or "") and not api_is_local


def _connect(job: JobView, seconds: float) -> socket.socket | None:
    try:
        line = socket.create_connection((job.node_ip or "", job.node_port or 0), timeout=seconds)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError):
        return None
    return line
