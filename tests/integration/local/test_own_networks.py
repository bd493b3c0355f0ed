"""Dev servers with networks of their own: what they reach, what they do not, and what is left of it."""

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
import struct
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.network import claims, firewall, links, own_networks, probe
from gpudev.adapters.local.network.dns_relay import DNS_PORT, DnsRelay
from gpudev.adapters.local.network.own_networks import (
    NetworksUnavailable,
    OwnNetwork,
    OwnNetworks,
    open_own_networks,
    remove_own_networks,
)
from gpudev.adapters.local.network.plan import INTERFACE_PREFIX, NetworkSetting, instance_tag
from gpudev.adapters.local.network.rules import LISTENER_MARK, FirewallPlan
from gpudev.adapters.local.servers.server_networks import read_network_description
from gpudev.adapters.local.servers.ssh_listeners import SshListeners
from gpudev.domain.errors import Unavailable
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase, ServerState
from support.local.local_world import BOB, IS_ROOT, ONLY_LINUX, LocalWorld
from support.polling import eventually, eventually_async

pytestmark = [
    pytest.mark.slow,
    ONLY_LINUX,
    pytest.mark.skipif(not IS_ROOT, reason="only root can set up networks"),
    pytest.mark.skipif(not firewall.installed_firewalls(), reason="neither nft nor iptables is installed"),
]
NOBODY = 65534
FIREWALLS = {found.name: found for found in firewall.installed_firewalls()}


@pytest.fixture(scope="module", autouse=True)
def namespaces_allowed() -> None:
    try:
        os.close(links.create_namespace())
    except OSError as error:
        pytest.skip(f"this system allows no network namespaces: {error.strerror}")


# Networks without dev servers, with each firewall program.


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    remove_own_networks(tmp_path)


@pytest.fixture(params=["nft", "iptables"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> firewall.Firewall:
    if request.param not in FIREWALLS:
        pytest.skip(f"{request.param} is not installed")
    chosen = FIREWALLS[request.param]
    monkeypatch.setattr(own_networks, "find_firewall", lambda: chosen)
    return chosen


@pytest.fixture
def networks(program: firewall.Firewall, state_dir: Path) -> Iterator[OwnNetworks]:
    opened = open_own_networks(state_dir)
    yield opened
    opened.close()


@pytest.fixture
def outside(networks: OwnNetworks) -> Iterator[tuple[int, str]]:
    """A machine outside: its namespace and address."""
    number = networks.plan.probe_numbers[1]
    with probe._joined(networks.plan, number, f"gdprobe-{networks.plan.tag}", 1500) as namespace:
        yield namespace, str(networks.plan.addresses(number).inside)


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


def test_the_host_is_afterwards_as_it_was(program: firewall.Firewall, state_dir: Path) -> None:
    tag = instance_tag(state_dir)
    assert traces_on_host(tag) == []
    for _ in range(2):
        networks = open_own_networks(state_dir)
        network = networks.take()
        assert len(traces_on_host(tag)) > 1
        networks.close()
        remove_own_networks(state_dir)
        network.close()
        remove_own_networks(state_dir)
        assert traces_on_host(tag) == []


def test_the_last_of_several_instances_restores_forwarding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine's interfaces those are changed that did not forward before the first one."""
    host = replace(links.read_host_networks(INTERFACE_PREFIX), uplinks=("off", "on"))
    forwarding = {"off": False, "on": True}
    monkeypatch.setattr(claims, "_FOLDER", tmp_path / "claims")
    monkeypatch.setattr(links, "read_host_networks", lambda _: host)
    monkeypatch.setattr(links, "is_forwarding", forwarding.__getitem__)
    monkeypatch.setattr(links, "set_forwarding", lambda name, on: forwarding.update({name: on}))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        open_own_networks(folder).close()
        assert forwarding == {"off": True, "on": True}
    remove_own_networks(folders[0])
    assert forwarding == {"off": True, "on": True}
    remove_own_networks(folders[1])
    assert forwarding == {"off": False, "on": True}


@dataclass
class FakeForwarding:
    """The machine's interfaces, as somebody else changes them."""

    uplinks: tuple[str, ...]
    """With a route."""
    is_on: dict[str, bool]
    is_router: bool = False

    def become_router(self) -> None:
        """As Docker does when it starts: the kernel then has every interface forward."""
        self.is_router = True
        self.is_on = dict.fromkeys(self.is_on, True)


@pytest.fixture
def forwarding(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForwarding]:
    fake = FakeForwarding(("lan",), {"lan": False, "vpn": False})
    host, existing = links.read_host_networks(INTERFACE_PREFIX), links.list_interfaces
    monkeypatch.setattr(claims, "_FOLDER", tmp_path / "claims")
    monkeypatch.setattr(links, "read_host_networks", lambda _: replace(host, uplinks=fake.uplinks))
    monkeypatch.setattr(links, "list_interfaces", lambda: [*existing(), *fake.is_on])
    monkeypatch.setattr(links, "is_forwarding", lambda name: fake.is_on.get(name, True))
    monkeypatch.setattr(links, "is_router", lambda: fake.is_router)
    monkeypatch.setattr(links, "set_forwarding", lambda name, on: fake.is_on.update({name: on}))
    yield fake
    remove_own_networks(state_dir)  # while its claim can be found


def test_forwarding_that_somebody_else_has_enabled_meanwhile_stays(state_dir: Path, forwarding: FakeForwarding) -> None:
    open_own_networks(state_dir).close()
    assert forwarding.is_on == {"lan": True, "vpn": False}
    forwarding.become_router()
    remove_own_networks(state_dir)
    assert forwarding.is_on == {"lan": True, "vpn": True}


def test_what_the_machine_forwards_for_others_passes_once_somebody_has_made_it_a_router(
    state_dir: Path, forwarding: FakeForwarding
) -> None:
    networks = open_own_networks(state_dir)
    assert networks._claim.uplinks == ("lan",)
    forwarding.become_router()
    assert networks.ensure_rules()
    assert networks._claim.uplinks == ()
    assert not networks.ensure_rules()
    networks.close()
    remove_own_networks(state_dir)
    assert forwarding.is_on == {"lan": True, "vpn": True}


def test_an_interface_that_gets_its_route_later_is_used_and_restored(
    state_dir: Path, forwarding: FakeForwarding
) -> None:
    """At boot, addresses may come after us; a VPN may come at any time."""
    networks = open_own_networks(state_dir)
    forwarding.uplinks = ("lan", "vpn")
    assert networks.ensure_rules()
    assert forwarding.is_on == {"lan": True, "vpn": True}
    assert networks._claim.uplinks == ("lan", "vpn")
    forwarding.uplinks = ("lan",)  # a route may go for a while
    assert not networks.ensure_rules()
    networks.close()
    remove_own_networks(state_dir)
    assert forwarding.is_on == {"lan": False, "vpn": False}


def test_forwarding_that_somebody_switched_off_is_switched_on_again(
    state_dir: Path, forwarding: FakeForwarding
) -> None:
    networks = open_own_networks(state_dir)
    forwarding.is_on["lan"] = False
    networks.ensure_rules()
    networks.close()
    assert forwarding.is_on["lan"]


def test_instances_do_not_reach_each_others_dev_servers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        taken = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            stack.callback(remove_own_networks, folder)
            opened = open_own_networks(folder)
            stack.callback(opened.close)
            taken.append((opened, stack.enter_context(contextlib.closing(opened.take()))))
        (_, alice), (others, bob) = taken
        address = str(others.plan.addresses(bob.network_id.number).inside)
        with listening(address, bob.namespace) as neighbour:
            assert not reaches(alice, neighbour)


def test_what_is_left_of_a_removed_instance_is_removed_by_the_next(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    lost.mkdir()
    networks = open_own_networks(lost)
    held = networks.take()
    networks.close()
    lost.rmdir()
    other = tmp_path / "other"
    other.mkdir()
    open_own_networks(other).close()
    assert not claims.has_claim(instance_tag(lost))
    remove_own_networks(other)
    held.close()
    assert traces_on_host(instance_tag(lost)) == []


def test_rules_that_somebody_removed_are_applied_again(networks: OwnNetworks, program: firewall.Firewall) -> None:
    assert not networks.ensure_rules()
    program.remove(networks._claim.firewall)
    assert networks.ensure_rules()
    with contextlib.closing(networks.take()) as network, listening("0.0.0.0") as host:
        assert not reaches(network, (str(network.gateway), host[1]))


def test_networks_without_a_dev_server_are_removed_at_the_next_start(networks: OwnNetworks) -> None:
    with contextlib.closing(networks.take()) as used, contextlib.closing(networks.take()) as unused:
        networks.close()
        networks.remove_others([used.network_id.number])
        assert networks.plan.interface(used.network_id.number) in links.list_interfaces()
        assert networks.plan.interface(unused.network_id.number) not in links.list_interfaces()


def test_removing_a_network_twice_leaves_the_next_one_with_its_number(networks: OwnNetworks) -> None:
    with contextlib.closing(networks.take()) as network:
        networks.close()
        networks.remove(network.network_id)
    with contextlib.closing(networks._create()) as following:
        assert following.network_id.number == network.network_id.number
        networks.remove(network.network_id)
        assert networks.plan.interface(following.network_id.number) in links.list_interfaces()


def test_a_network_ends_with_its_last_user(networks: OwnNetworks) -> None:
    network = networks.take()
    interface = networks.plan.interface(network.network_id.number)
    assert interface in links.list_interfaces()
    network.close()
    eventually(lambda: interface not in links.list_interfaces(), within=60)
    networks.remove(network.network_id)


def test_a_firewall_of_others_that_drops_what_is_forwarded_is_passed(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path, tmp_path: Path
) -> None:
    """As with Docker, whose policy for forwarded packets is to drop them."""
    if set(FIREWALLS) != {"nft", "iptables"}:
        pytest.skip("needs nft and iptables")
    drop = ["-p", "tcp", "-o", f"gdprobe-{instance_tag(state_dir)}", "-j", "DROP"]
    monkeypatch.setattr(own_networks, "_probe_results", {})
    subprocess.run(["iptables", "-w", "-A", "FORWARD", *drop], check=True)
    try:
        open_own_networks(state_dir).close()
        remove_own_networks(state_dir)
    finally:
        subprocess.run(["iptables", "-w", "-D", "FORWARD", *drop], check=True)
    assert INTERFACE_PREFIX + instance_tag(state_dir) not in output("iptables", "-S")


def test_networks_that_have_worked_are_not_given_up_for_a_moments_failure(
    program: firewall.Firewall, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would be told that the next dev servers share the host's network."""

    def refuse(_: FirewallPlan) -> None:
        raise firewall.FirewallError(0, "the program does not answer")

    open_own_networks(state_dir).close()
    other = tmp_path / "other"
    other.mkdir()
    with monkeypatch.context() as busy:
        busy.setattr(program, "apply", refuse)
        with pytest.raises(Unavailable, match="does not answer"):
            open_own_networks(state_dir)
        with pytest.raises(NetworksUnavailable, match="does not answer"):
            open_own_networks(other)
    open_own_networks(state_dir).close()


def test_without_a_firewall_program_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_networks, "find_firewall", lambda: None)
    with pytest.raises(NetworksUnavailable, match="neither nft nor iptables"):
        open_own_networks(tmp_path)
    assert traces_on_host(instance_tag(tmp_path)) == []


def test_an_ordinary_user_has_nothing_to_remove_after_root_has_used_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_FOLDER", tmp_path / "claims")
    with claims.hold_claims_lock():
        pass
    os.seteuid(NOBODY)
    try:
        remove_own_networks(Path("/srv/theirs"))
    finally:
        os.seteuid(0)


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


# Dev servers


class OwnNetworkWorld(LocalWorld):
    def make_cluster(self) -> LocalCluster:
        return LocalCluster(self.state_dir, self.nodes, self.clock, mode=self.mode, network=NetworkSetting.OWN)


@pytest.fixture
async def own() -> AsyncIterator[OwnNetworkWorld]:
    async with OwnNetworkWorld(SystemClock(), IsolationMode.ROOT) as opened:
        yield opened


async def test_two_people_listen_on_the_same_port_and_each_reaches_their_own(own: OwnNetworkWorld) -> None:
    alice, bob = await own.ready(own.spec()), await own.ready(own.spec(user_id=BOB, username="bob"))
    for seen, name in ((alice, "alice"), (bob, "bob")):
        for port in (8888, 6006):
            await own.out(seen, serve(port, f"{name} {port}"))
    for seen, name in ((alice, "alice"), (bob, "bob")):
        for port in (8888, 6006):
            assert await through_stdio(own, seen, f"127.0.0.1:{port}") == f"{name} {port}"
            assert await through_forward(own, seen, f"localhost:{port}") == f"{name} {port}"
    assert "its own network" in own.cluster.isolation


async def test_nothing_of_the_machine_can_be_reached_from_inside(own: OwnNetworkWorld) -> None:
    spec = own.spec()
    seen, other = await own.ready(spec), await own.ready(own.spec(user_id=BOB, username="bob"))
    await own.out(other, serve(8888, "bob", address="0.0.0.0"))
    addresses = await own.out(other, "cat /proc/net/fib_trie | grep -B1 'host LOCAL' | grep -oE '[0-9.]{7,}'")
    assert other.connection is not None
    targets = [(address, 8888) for address in set(addresses.split()) if not address.startswith("127.")]
    assert targets
    with listening("0.0.0.0") as control_plane:
        hosts = ("127.0.0.1", "localhost", address_of_host())
        targets += [(host, control_plane[1]) for host in hosts] + [(host, other.connection.port) for host in hosts]
        for host, port in targets:
            probe_command = f"timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/{port}'"
            assert (await own.ssh(seen, probe_command)).returncode != 0, (host, port)
            assert await through_stdio(own, seen, f"{host}:{port}") == "", (host, port)
    assert set((await own.out(seen, "ls /sys/class/net")).split()) == {"lo", "eth0"}
    assert (await own.ssh(seen, "touch /sys/x /sys/fs/cgroup/x")).returncode != 0


async def test_a_user_cannot_get_into_the_hosts_network(own: OwnNetworkWorld) -> None:
    seen = await own.ready(own.spec())
    for command in (
        "ip link set eth0 down",
        "ip address add 127.0.0.9/8 dev eth0",
        "ip route add 203.0.113.0/24 dev eth0",
        "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6",
        "nsenter --net=/proc/1/ns/net true",
        "unshare -Ur ip link set eth0 down",
        "unshare -Ur sh -c 'echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6'",
    ):
        assert (await own.ssh(seen, command)).returncode != 0, command
    assert (await own.out(seen, "readlink /proc/self/ns/net")) != network_of(os.getpid())


async def test_a_user_who_takes_every_port_keeps_nobody_from_starting(own: OwnNetworkWorld) -> None:
    alice = await own.ready(own.spec())
    taken = await own.out(
        alice,
        "python3 -c '"
        "import resource, socket, subprocess, sys\n"
        "limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "held = []\n"
        "for port in range(32768, 32768 + min(limit, 20000) - 100):\n"
        "    one = socket.socket(); held.append(one)\n"
        '    try: one.bind(("127.0.0.1", port)); one.listen(1)\n'
        "    except OSError: pass\n"
        "print(len(held)); sys.stdout.flush()\n"
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); [os.close(n) for n in (0, 1, 2)]\n"
        "    import time; time.sleep(300)\n"
        "'",
    )
    assert int(taken) > 1000
    for _ in range(2):
        bob = await own.ready(own.spec(nodes=2, user_id=BOB, username="bob"))
        assert await own.out(bob, "echo in") == "in"


async def test_ports_are_forwarded_in_every_direction(own: OwnNetworkWorld) -> None:
    seen = await own.ready(own.spec())
    await own.out(seen, serve(8888, "inside"))
    with listening("127.0.0.1", answer=b"mine") as (_, port):
        remote = own.open_session(seen, "cat", "-R", f"9999:127.0.0.1:{port}")
        try:
            await eventually_async(lambda: "mine" in own.ssh_now(seen, fetch("127.0.0.1", 9999)).stdout, within=60)
        finally:
            remote.kill()
            remote.communicate()
    free = free_port()
    proxy = own.open_session(seen, "cat", "-D", f"127.0.0.1:{free}")
    try:
        await eventually_async(lambda: socks_answer(free, ("127.0.0.1", 8888)) == b"inside", within=60)
    finally:
        proxy.kill()
        proxy.communicate()


async def test_the_outside_and_its_names_are_reached_from_a_dev_server(own: OwnNetworkWorld) -> None:
    networks = own.cluster._networks.own
    assert networks is not None
    seen = await own.ready(own.spec())
    number = networks.plan.probe_numbers[1]
    interface = f"gdprobe-{networks.plan.tag}"
    address = str(networks.plan.addresses(number).inside)

    def fetch_from_outside() -> str:
        with (
            probe._joined(networks.plan, number, interface, 1500) as namespace,
            listening(address, namespace, answer=b"outside") as (_, port),
        ):
            return own.ssh_now(seen, fetch(address, port)).stdout

    assert await asyncio.to_thread(fetch_from_outside) == "outside"
    assert "nameserver" in await own.out(seen, "cat /etc/resolv.conf")


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


async def test_a_command_that_starts_no_dev_servers_changes_nothing_of_the_networks(own: OwnNetworkWorld) -> None:
    """`gpu-dev-server expire`, beside the processor."""
    described = read_network_description(own.state_dir)
    assert "its own network" in described
    spec = own.spec()
    await own.ready(spec)
    other = LocalCluster(own.state_dir, own.nodes, own.clock, mode=own.mode, network=None)
    await other.start()
    try:
        await eventually_async(lambda: other.ensure_gone(spec.reservation_id))
    finally:
        await other.close()
    assert read_network_description(own.state_dir) == described
    networks = own.cluster._networks.own
    assert networks is not None
    await own.cluster.observe()
    await eventually_async(lambda: len(networks._held) <= len(networks._ready), within=60)


async def test_the_members_of_a_gang_are_in_one_network(own: OwnNetworkWorld) -> None:
    spec = own.spec(nodes=2)
    seen = await own.ready(spec)
    record = own.cluster._servers[spec.reservation_id].record
    assert record is not None
    names = (await own.out(seen, "echo $GPU_DEV_HOSTS")).split(",")
    ports = (await own.out(seen, "echo $GPU_DEV_SSH_PORTS")).split(",")
    assert [int(port) for port in ports] == list(record.ports)
    for name, port in zip(names, ports, strict=True):
        assert (await own.out(seen, f"timeout 10 bash -c 'exec 3<>/dev/tcp/{name}/{port}; head -c 4 <&3'")) == "SSH-"
    await own.out(seen, serve("$MASTER_PORT", "master"))
    pid = own.first_process(spec.reservation_id, rank=1).pid
    assert len({network_of(own.first_process(spec.reservation_id, rank).pid) for rank in (0, 1)}) == 1
    assert record.master_port is not None
    inside = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        with links.run_in_namespace(inside, socket.socket) as client:
            client.settimeout(10)
            client.connect(("127.0.0.1", record.master_port))
            assert client.recv(10) == b"master"
    finally:
        os.close(inside)


async def test_a_network_outlives_the_control_plane_and_ends_with_its_dev_server(own: OwnNetworkWorld) -> None:
    spec = own.spec()
    seen = await own.ready(spec)
    await own.out(seen, serve(8888, "still here"))
    networks, record = own.cluster._networks.own, own.cluster._servers[spec.reservation_id].record
    assert networks is not None
    assert record is not None
    assert record.network is not None
    interface = networks.plan.interface(record.network.number)
    async with own.nobody_watching():
        assert await through_stdio(own, seen, "127.0.0.1:8888") == "still here"
        assert interface in links.list_interfaces()
    found = await own.seen(spec.reservation_id)
    assert found is not None
    assert found.connection == seen.connection
    assert await through_stdio(own, found, "127.0.0.1:8888") == "still here"
    assert interface in links.list_interfaces()
    await own.gone(spec.reservation_id)
    await eventually_async(lambda: interface not in links.list_interfaces(), within=60)


async def test_a_dev_server_that_is_started_again_has_a_network_again(own: OwnNetworkWorld) -> None:
    spec = own.spec()
    await own.ready(spec)
    await own.kill(spec.reservation_id)
    await own.until(spec.reservation_id, ServerPhase.DEAD)
    seen = await own.ready(spec)
    assert set((await own.out(seen, "ls /sys/class/net")).split()) == {"lo", "eth0"}


async def test_dev_servers_of_a_shared_network_go_on_beside_those_with_their_own(own: OwnNetworkWorld) -> None:
    await own.cluster.close()
    older_spec = own.spec()
    cluster = LocalCluster(own.state_dir, own.nodes, own.clock, mode=own.mode, network=NetworkSetting.SHARED)
    own.cluster = cluster
    await cluster.start()
    older = await own.ready(older_spec)
    await cluster.close()
    await own.open()
    found = await own.seen(older_spec.reservation_id)
    assert found is not None
    assert found.connection == older.connection
    assert await own.out(found, "readlink /proc/self/ns/net") == network_of(os.getpid())
    newer = await own.ready(own.spec())
    assert await own.out(newer, "readlink /proc/self/ns/net") != network_of(os.getpid())


# Helpers


@contextlib.contextmanager
def listening(address: str, namespace: int | None = None, answer: bytes = b"") -> Iterator[tuple[str, int]]:
    """A listener that answers everybody, and where it is."""

    def create() -> socket.socket:
        return socket.create_server((address, 0))

    with create() if namespace is None else links.run_in_namespace(namespace, create) as listener:

        def serve_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve_all)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reaches(network: OwnNetwork, address: tuple[str, int]) -> bool:
    return connects(lambda: links.run_in_namespace(network.namespace, socket.socket), address)


def connects(make_client: Callable[[], socket.socket], address: tuple[str, int]) -> bool:
    with make_client() as client:
        client.settimeout(3)
        try:
            client.connect(address)
        except OSError:
            return False
        return True


def disconnect(connected: socket.socket) -> None:
    """Make a socket one that can connect anew, as a program that got hold of it could."""
    address = struct.pack("=H14x", socket.AF_UNSPEC)
    ctypes.CDLL(None).connect(connected.fileno(), address, len(address))


def network_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def address_of_host() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        probe_socket.connect(("203.0.113.1", 9))  # sends nothing
        return str(probe_socket.getsockname()[0])


def traces_on_host(tag: str) -> list[str]:
    """Everything on this machine that bears the name of an instance."""
    tables = output("nft", "list", "tables") if "nft" in FIREWALLS else ""
    rules = output("iptables", "-S") + output("iptables", "-t", "nat", "-S") if "iptables" in FIREWALLS else ""
    found = [*tables.splitlines(), *rules.splitlines(), *links.list_interfaces()]
    return [line for line in found if tag in line] + ["claim"] * claims.has_claim(tag)


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def closed_to(interfaces: str) -> Iterator[None]:
    """A firewall of others that drops what nobody has allowed to come in, as ufw sets it up."""
    drop = ["INPUT", "-i", interfaces, "-j", "DROP"]
    if "iptables" in FIREWALLS:
        subprocess.run(["iptables", "-w", "-A", *drop], check=True)
    try:
        yield
    finally:
        if "iptables" in FIREWALLS:
            subprocess.run(["iptables", "-w", "-D", *drop], check=True)


@contextlib.contextmanager
def published(networks: OwnNetworks, port: int, container: tuple[str, int]) -> Iterator[None]:
    """A port of the machine that leads elsewhere. As Docker does it, before the machine is known to be meant."""
    rule = [
        *("-i", f"{networks.plan.interface_prefix}+", "-p", "tcp", "--dport", str(port)),
        *("-j", "DNAT", "--to-destination", f"{container[0]}:{container[1]}"),
    ]
    if "iptables" not in FIREWALLS:
        pytest.skip("iptables is not installed")
    subprocess.run(["iptables", "-w", "-t", "nat", "-A", "PREROUTING", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-w", "-t", "nat", "-D", "PREROUTING", *rule], check=True)


@contextlib.contextmanager
def bridged_container(networks: OwnNetworks) -> Iterator[tuple[str, int]]:
    """The address of a listening socket behind a bridge, as Docker sets it up."""
    number = networks.plan.probe_numbers[0]
    addresses = networks.plan.addresses(number)
    bridge, port = f"gdbr-{networks.plan.tag}", f"gdbp-{networks.plan.tag}"
    namespace = links.create_namespace()
    try:
        links.join_to_host(namespace, port, addresses, 1500)
        for command in (
            f"address flush dev {port}",
            f"link add {bridge} type bridge",
            f"link set {port} master {bridge}",
            f"address add {addresses.gateway}/{addresses.prefix} dev {bridge}",
            f"link set {bridge} up",
        ):
            subprocess.run(["ip", *command.split()], check=True)
        Path(f"/proc/sys/net/ipv4/conf/{bridge}/forwarding").write_text("1")
        with listening(str(addresses.inside), namespace) as there:
            yield there
    finally:
        os.close(namespace)
        links.delete_interfaces([bridge, port])


def resolve_locally(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the host's only name server be on one of its loopback addresses."""
    address = f"127.9.{secrets.randbelow(250)}.{1 + secrets.randbelow(250)}"
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {address}\nsearch lab.example\n")
    monkeypatch.setattr(own_networks, "_RESOLV_CONF", resolver)
    monkeypatch.setattr(own_networks, "_SYSTEMD_RESOLV_CONF", folder / "none")
    return address


@contextlib.contextmanager
def name_server(address: str) -> Iterator[None]:
    """Answers each query with its id and text, by UDP and TCP."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_server((address, DNS_PORT)) as connections,
    ):
        datagrams.bind((address, DNS_PORT))

        def answer_datagrams() -> None:
            with contextlib.suppress(OSError):
                while True:
                    query, client = datagrams.recvfrom(1000)
                    if not query:
                        return
                    datagrams.sendto(query[:2] + b"answer to " + query[-5:], client)

        def answer_connections() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = connections.accept()
                    with connection:
                        query = connection.recv(1000)
                        connection.sendall(query[:2] + b"answer to " + query[-5:])

        threads = [threading.Thread(target=act) for act in (answer_datagrams, answer_connections)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for one in (datagrams, connections):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def ask(network: OwnNetwork, kind: socket.SocketKind) -> bytes:
    with links.run_in_namespace(network.namespace, lambda: socket.socket(socket.AF_INET, kind)) as client:
        client.settimeout(10)
        client.connect((str(network.gateway), DNS_PORT))
        client.sendall(b"\x12\x34 some name query")
        return client.recv(1000)


def serve(port: int | str, text: str, address: str = "127.0.0.1") -> str:
    """A command that leaves a server behind, and ends when that listens."""
    program = (
        "import os, socket, sys\n"
        "s = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
        "if os.fork(): sys.exit()\n"
        "os.setsid(); [os.close(n) for n in (0, 1, 2)]\n"
        "while True:\n"
        "    c = s.accept()[0]; c.sendall(sys.argv[3].encode()); c.close()\n"
    )
    return f"python3 -c '{program}' {address} {port} '{text}'"


def fetch(host: str, port: int) -> str:
    return f"timeout 10 bash -c 'exec 3<>/dev/tcp/{host}/{port}; cat <&3'"


async def through_stdio(world: LocalWorld, seen: ServerState, target: str) -> str:
    """What `ssh -W` gets from there."""
    command = world.ssh_command(seen, "-W", target)
    done = await asyncio.to_thread(
        subprocess.run, command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    return done.stdout.decode()


async def through_forward(world: LocalWorld, seen: ServerState, target: str) -> str:
    """What `ssh -L` gets from there."""
    port = free_port()
    session = world.open_session(seen, "cat", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{port}:{target}")
    received = b""

    def fetch_once() -> bool:
        nonlocal received
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as client:
            received = client.recv(1000)
        return bool(received)

    try:
        await eventually_async(fetch_once, within=60)
    finally:
        session.kill()
        session.communicate()
    return received.decode()


def socks_answer(port: int, target: tuple[str, int]) -> bytes:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as client:
        client.settimeout(10)
        client.sendall(b"\x04\x01" + struct.pack(">H", target[1]) + socket.inet_aton(target[0]) + b"\0")
        if client.recv(8)[1:2] == b"\x5a":
            return client.recv(1000)
    return b""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        return int(trial.getsockname()[1])
