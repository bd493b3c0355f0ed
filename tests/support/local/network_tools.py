"""For tests of dev servers' own networks: listeners, name servers and firewalls of others, and who reaches them."""

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudev.adapters.local.network import claims, firewall, links, own_networks
from gpudev.adapters.local.network.dns_relay import DNS_PORT
from gpudev.adapters.local.network.own_networks import (
    OwnNetwork,
    OwnNetworks,
)
from gpudev.ports.cluster import ServerState
from support.local.local_world import IS_ROOT, ONLY_LINUX, LocalWorld
from support.polling import eventually_async
from support.ports import free_port

FIREWALLS = {found.name: found for found in firewall.installed_firewalls()}
NEEDS_OWN_NETWORKS = (
    ONLY_LINUX,
    pytest.mark.skipif(not IS_ROOT, reason="only root can set up networks"),
    pytest.mark.skipif(not FIREWALLS, reason="neither nft nor iptables is installed"),
    pytest.mark.usefixtures("namespaces_allowed"),
)


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
