"""The SSH server itself: who may connect and what a connection may ask for."""

import socket

from gpudev.adapters.local.sshd.config import SshdConfig


def preload() -> None:
    """Import everything `run` will ever need: it runs where no module can be found any more."""


def run(config: SshdConfig, listener: socket.socket) -> None:
    """Serve on a socket that already listens, until killed."""
    raise NotImplementedError
