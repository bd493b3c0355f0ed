"""A machine outside of this one, as far as dev servers can tell: an address behind a network namespace.

Dev servers with networks of their own reach nothing that listens on this machine itself.
"""

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.network import links
from gpudev.adapters.local.network.plan import LinkAddresses

_RANGE = IPv4Address("198.18.0.0")
"""For tests of networks (RFC 2544): nobody's."""


@contextlib.contextmanager
def listen_outside() -> Iterator[socket.socket]:
    """A listening socket out there. Without root, or where root may not create networks: on loopback."""
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(_join_namespace()) if linux.IS_LINUX and os.geteuid() == 0 else None
        except OSError:
            listener = None
        yield listener or stack.enter_context(socket.create_server(("127.0.0.1", 0)))


@contextlib.contextmanager
def _join_namespace() -> Iterator[socket.socket]:
    first = _RANGE + 4 * secrets.randbelow(1 << 15)
    addresses = LinkAddresses(first + 1, first + 2, 30)
    interface = f"gdtest-{secrets.token_hex(3)}"
    namespace = links.create_namespace()
    try:
        links.join_to_host(namespace, interface, addresses, 1500)
        with links.run_in_namespace(namespace, lambda: socket.create_server((str(addresses.inside), 0))) as listener:
            yield listener
    finally:
        os.close(namespace)
        links.delete_interfaces([interface])
