"""Networks of their own for dev servers: what is reached from inside, and what is not. With each firewall program."""

import contextlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gpudev.adapters.local.network import firewall, links
from gpudev.adapters.local.network.own_networks import (
    OwnNetwork,
    OwnNetworks,
)
from gpudev.adapters.local.network.rules import LISTENER_MARK
from gpudev.adapters.local.servers.ssh_listeners import SshListeners
from gpudev.domain.errors import Unavailable
from support.local.network_tools import (
    NEEDS_OWN_NETWORKS,
    address_of_host,
    bridged_container,
    connects,
    disconnect,
    listening,
    published,
    reaches,
)

pytestmark = [pytest.mark.slow, *NEEDS_OWN_NETWORKS]


def test_the_outside_is_reached_and_neither_host_nor_neighbour(networks: OwnNetworks, outside: tuple[int, str]) -> None:
    namespace, address = outside
    with contextlib.closing(networks.take()) as alice, contextlib.closing(networks.take()) as bob:
        with listening(address, namespace) as there:
            assert reaches(alice, there)
        own = str(networks.plan.addresses(bob.network_id.number).inside)
        with listening(own, bob.namespace) as neighbour:
            assert reaches(bob, neighbour)
            assert not reaches(alice, neighbour)
            assert not connects(lambda: links.run_in_namespace(namespace, socket.socket), neighbour)
        with listening("0.0.0.0") as host:
            for name in ("127.0.0.1", str(alice.gateway), str(bob.gateway), address_of_host()):
                assert not reaches(alice, (name, host[1])), name


def test_ports_of_the_machine_that_lead_to_a_container_are_not_reached(
    networks: OwnNetworks, outside: tuple[int, str]
) -> None:
    namespace, address = outside
    with (
        contextlib.closing(networks.take()) as alice,
        listening(address, namespace) as there,
        published(networks, 9, there),
    ):
        assert reaches(alice, there)
        assert not reaches(alice, (str(alice.gateway), 9))
        assert not reaches(alice, (address_of_host(), 9))


def test_containers_on_a_bridge_of_this_machine_are_not_reached(networks: OwnNetworks) -> None:
    """What Docker's own rules keep from the outside, ours must not let through."""
    with bridged_container(networks) as container:
        networks.ensure_rules()
        with contextlib.closing(networks.take()) as alice:
            assert connects(socket.socket, container)
            assert not reaches(alice, container)


def test_one_dev_server_cannot_fill_the_table_of_connections(
    networks: OwnNetworks, outside: tuple[int, str], program: firewall.Firewall
) -> None:
    namespace, address = outside
    program.apply(replace(networks._claim.firewall, max_connections=3))
    with (
        contextlib.closing(networks.take()) as alice,
        contextlib.closing(networks.take()) as bob,
        links.run_in_namespace(namespace, lambda: socket.create_server((address, 0))) as listener,
        contextlib.ExitStack() as stack,
    ):

        def holds(network: OwnNetwork) -> bool:
            client = stack.enter_context(links.run_in_namespace(network.namespace, socket.socket))
            client.settimeout(3)
            return client.connect_ex(listener.getsockname()) == 0

        assert [holds(alice) for _ in range(5)] == [True, True, True, False, False]
        assert holds(bob)


def test_cloud_metadata_is_rejected_and_not_just_unanswered(networks: OwnNetworks) -> None:
    with contextlib.closing(networks.take()) as network, links.run_in_namespace(network.namespace, socket.socket) as it:
        it.settimeout(5)
        with pytest.raises(OSError, match=r"(?i)unreachable|refused|prohibited|permitted|route") as failure:
            it.connect(("169.254.169.254", 80))
        assert not isinstance(failure.value, TimeoutError)


def test_there_is_no_ipv6_but_on_loopback(networks: OwnNetworks) -> None:
    with contextlib.closing(networks.take()) as network:
        inside = links.run_in_namespace(network.namespace, lambda: Path("/proc/thread-self/net/if_inet6").read_text())
        assert {line.split()[-1] for line in inside.splitlines()} <= {"lo"}
        host = Path("/proc/net/if_inet6").read_text()
        assert networks.plan.interface(network.network_id.number) not in host


def test_a_socket_that_was_passed_in_cannot_begin_a_connection(networks: OwnNetworks) -> None:
    listeners = SshListeners("127.0.0.1", 1, LISTENER_MARK)
    with contextlib.closing(listeners), listeners.take(None) as listener, listening("127.0.0.1") as control_plane:
        with socket.create_connection(listener.getsockname(), 5) as client, listener.accept()[0] as accepted:
            accepted.sendall(b"answer")
            assert client.recv(6) == b"answer"
            disconnect(accepted)
            assert not connects(lambda: accepted, control_plane)
        listener.shutdown(socket.SHUT_RDWR)
        disconnect(listener)
        assert not connects(lambda: listener, control_plane)


def test_where_somebody_has_taken_every_port_those_opened_ahead_are_used_and_then_a_launch_waits(
    networks: OwnNetworks,
) -> None:
    def scenario() -> None:
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40007")
        listeners = SshListeners("127.0.0.1", 2)
        listeners.fill()
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                while True:
                    stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(listeners.close)
            ports = {stack.enter_context(listeners.take(None)).getsockname()[1] for _ in range(2)}
            assert len(ports) == 2
            with pytest.raises(Unavailable, match="no port is free"):
                listeners.take(None)

    with contextlib.closing(networks.take()) as network:
        links.run_in_namespace(network.namespace, scenario)
