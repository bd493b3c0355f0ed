"""Names are resolved in networks of their own, also where only the host reaches the name server."""

import asyncio
import contextlib
import secrets
import socket
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.network import firewall
from gpudev.adapters.local.network.dns_relay import DNS_PORT, DnsRelay
from gpudev.adapters.local.network.own_networks import (
    OwnNetworks,
    open_own_networks,
)
from gpudev.ports.clock import SystemClock
from support.fixtures.own_networks import OwnNetworkWorld
from support.local.network_tools import (
    NEEDS_OWN_NETWORKS,
    address_of_host,
    ask,
    closed_to,
    listening,
    name_server,
    published,
    reaches,
    resolve_locally,
)
from support.polling import eventually_async

pytestmark = [pytest.mark.slow, *NEEDS_OWN_NETWORKS]


async def test_names_are_resolved_by_the_relay(
    program: firewall.Firewall, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = resolve_locally(state_dir, monkeypatch)
    networks = await asyncio.to_thread(open_own_networks, state_dir)
    relay = DnsRelay(networks.name_servers.relay_to)
    with name_server(local), closed_to(f"{networks.plan.interface_prefix}+"):
        network = await asyncio.to_thread(networks.take)
        relay.add(network.gateway)
        await asyncio.gather(*relay._starting)
        try:
            assert network.resolv_conf == f"nameserver {network.gateway}\nsearch lab.example\n"
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                assert await asyncio.to_thread(ask, network, kind) == b"\x12\x34" + b"answer to query"
        finally:
            await relay.close()
            network.close()
            await asyncio.to_thread(networks.close)


async def test_the_relay_serves_a_network_whose_number_had_no_interface_before(
    program: firewall.Firewall, state_dir: Path
) -> None:
    """After a reboot, records name networks that do not exist any more."""
    networks = await asyncio.to_thread(open_own_networks, state_dir)
    relay = DnsRelay(("127.0.0.1",))
    gateway = networks.plan.addresses(0).gateway
    relay.add(gateway)
    await asyncio.gather(*relay._starting)
    network = await asyncio.to_thread(networks.take)
    try:
        assert network.gateway == gateway
        relay.add(gateway)
        await asyncio.gather(*relay._starting)
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            with socket.socket(type=kind) as second, pytest.raises(OSError, match="in use"):
                second.bind((str(gateway), DNS_PORT))
    finally:
        await relay.close()
        network.close()
        await asyncio.to_thread(networks.close)


async def test_open_connections_to_the_relay_end_with_it() -> None:
    local, gateway = (f"127.9.{secrets.randbelow(250)}.{1 + secrets.randbelow(250)}" for _ in range(2))
    relay = DnsRelay((local,))
    with name_server(local):
        relay.add(IPv4Address(gateway))
        await asyncio.gather(*relay._starting)
        reader, writer = await asyncio.open_connection(gateway, DNS_PORT)
        endpoint = relay._endpoints[IPv4Address(gateway)]
        await eventually_async(lambda: len(endpoint._connections) == 1, within=60)
        await relay.close()
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        assert not endpoint._connections
        writer.close()


async def test_a_dev_server_asks_a_name_server_that_only_the_host_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = resolve_locally(tmp_path, monkeypatch)
    query = (
        "import socket\n"
        'server = open("/etc/resolv.conf").readline().split()[1]\n'
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10)\n"
        's.sendto(b"\\x12\\x34 some name query", (server, 53)); print(s.recv(100)[2:].decode())\n'
    )
    with name_server(local):
        async with OwnNetworkWorld(SystemClock(), IsolationMode.ROOT) as own:
            seen = await own.ready(own.spec())
            assert await own.out(seen, f"python3 -c '{query}'") == "answer to query"
            async with own.nobody_watching():
                pass
            assert await own.out(seen, f"python3 -c '{query}'") == "answer to query"


def test_the_hosts_name_server_may_be_a_container(
    networks: OwnNetworks, outside: tuple[int, str], program: firewall.Firewall
) -> None:
    namespace, address = outside
    with (
        contextlib.closing(networks.take()) as alice,
        listening(address, namespace) as there,
        published(networks, DNS_PORT, there),
    ):
        program.apply(replace(networks._claim.firewall, has_relay=False))
        assert not reaches(alice, (str(alice.gateway), DNS_PORT))
        program.apply(replace(networks._claim.firewall, has_relay=True))
        assert reaches(alice, (str(alice.gateway), DNS_PORT))
        assert not reaches(alice, (address_of_host(), DNS_PORT))
