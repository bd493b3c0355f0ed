"""Ports for programs that must be told theirs before they listen, and that nobody takes in between.

Not what the system gives for port 0: closed again, the next connection that goes out may have it. And none that another
test process was given: they agree in a file, by locks that end with the process that holds them.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

import pytest

_FIRST, _END = 15_000, 30_000
"""Below what outgoing connections use, and what Kubernetes gives to services."""

_RANDOM = random.SystemRandom()  # the usual one is seeded for some tests, in every process alike
_given: set[int] = set()


def free_port(address: str = "127.0.0.1") -> int:
    """For as long as this process lives."""
    while True:
        port = _RANDOM.randrange(_FIRST, _END)
        if port not in _given and _is_agreed(port) and _is_free(address, port):
            _given.add(port)
            return port


def _is_agreed(port: int) -> bool:
    try:
        fcntl.lockf(_agreement(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _agreement(_pid: int) -> int:
    """One byte for every port. It is never closed: that would give up all locks."""
    path = Path(tempfile.gettempdir()) / f"gpu-dev-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


OTHER_ADDRESS = "127.0.0.2"
NEEDS_OTHER_ADDRESS = pytest.mark.skipif(
    not _is_free(OTHER_ADDRESS, 0),
    reason=f"{OTHER_ADDRESS} is no address of this machine (macOS: sudo ifconfig lo0 alias {OTHER_ADDRESS})",
)
