"""Finds out whether own networks work here, by using two: one as a dev server, one as a machine outside.

No file shows what the kernel, the surrounding container and other programs' firewall rules allow.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address

from gpudev.adapters.local.network import links
from gpudev.adapters.local.network.plan import LinkAddresses, NetworkPlan

_CONNECT_TIMEOUT_S = 5.0


def probe_networks(plan: NetworkPlan, mtu: int) -> str | None:
    """What does not work. None: everything works."""
    inner, outer = plan.probe_numbers
    with (
        _joined(plan, inner, plan.interface(inner), mtu) as inside,
        # Its name is not one of the dev servers' interfaces, so the rules take it for the outside.
        _joined(plan, outer, f"gdprobe-{plan.tag}", mtu) as outside,
    ):
        problem = _probe_outside(inside, outside, plan.addresses(outer))
        return problem or _probe_host(inside, plan.addresses(inner).gateway)


@contextlib.contextmanager
def _joined(plan: NetworkPlan, number: int, interface: str, mtu: int) -> Iterator[int]:
    links.delete_interfaces([interface])
    namespace = links.create_namespace()
    try:
        links.join_to_host(namespace, interface, plan.addresses(number), mtu)
        yield namespace
    finally:
        os.close(namespace)
        links.delete_interfaces([interface])


def _probe_outside(inside: int, outside: int, addresses: LinkAddresses) -> str | None:
    with (
        links.run_in_namespace(outside, _listener(addresses.inside)) as listener,
        links.run_in_namespace(inside, socket.socket) as client,
    ):
        client.settimeout(_CONNECT_TIMEOUT_S)
        listener.settimeout(_CONNECT_TIMEOUT_S)
        try:
            client.connect(listener.getsockname())
            connection, peer = listener.accept()
        except OSError as error:
            return f"nothing passes from a network namespace to the outside ({error.strerror or error})"
        connection.close()
        return None if peer[0] == str(addresses.gateway) else "NAT does not work"


def _probe_host(inside: int, gateway: IPv4Address) -> str | None:
    with _listener(gateway)() as listener, links.run_in_namespace(inside, socket.socket) as client:
        client.settimeout(_CONNECT_TIMEOUT_S)
        with contextlib.suppress(OSError):
            client.connect(listener.getsockname())
            return "the firewall rules have no effect: the host can be reached from a network namespace"
    return None


def _listener(address: IPv4Address) -> Callable[[], socket.socket]:
    return lambda: socket.create_server((str(address), 0))
