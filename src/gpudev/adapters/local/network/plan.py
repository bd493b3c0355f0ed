"""Names, addresses and name servers of the dev servers' own networks. Pure.

Each dev server has a number. It names the interface on the host and the addresses at both ends, so that nothing else
need be recorded to find a network again.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

from gpudev.domain.addresses import is_metadata_address

INTERFACE_PREFIX = "gd-"
"""Of all instances on a machine: none of them lets another's dev servers through to its own."""
INSIDE_INTERFACE = "eth0"
_TAG_LENGTH = 6
_BLOCK_PREFIX = 20
_LINK_PREFIX = 30
_SHARED_RANGE = IPv4Network("100.64.0.0/10")
"""Addresses for NAT at providers. Where anything is found in it, a provider or a VPN uses it, and we do not."""
_RANGES = (_SHARED_RANGE, IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12"))


class NetworkSetting(StrEnum):
    AUTO = "auto"
    """Own networks where they work, else shared."""
    OWN = "own"
    """Own networks, or no start."""
    SHARED = "shared"


def instance_tag(state_dir: Path) -> str:
    return hashlib.sha256(str(state_dir).encode()).hexdigest()[:_TAG_LENGTH]


@dataclass(frozen=True, slots=True)
class NetworkId:
    """One network. Its number passes to another network later, its index does not."""

    number: int
    index: int
    """The kernel's number of the interface on the host."""


@dataclass(frozen=True, slots=True)
class LinkAddresses:
    """The two ends of one network."""

    gateway: IPv4Address
    """The host's end."""
    inside: IPv4Address
    """The dev server's end."""
    prefix: int


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The networks of one instance."""

    tag: str
    block: IPv4Network

    @property
    def interface_prefix(self) -> str:
        return f"{INTERFACE_PREFIX}{self.tag}-"

    @property
    def capacity(self) -> int:
        """How many networks there can be, without the two that the probe uses."""
        return self.block.num_addresses // 4 - 2

    @property
    def probe_numbers(self) -> tuple[int, int]:
        return self.capacity, self.capacity + 1

    def interface(self, number: int) -> str:
        return f"{self.interface_prefix}{number}"

    def find_number(self, interface: str) -> int | None:
        """The number of one of our interfaces. None: it is not ours."""
        digits = interface.removeprefix(self.interface_prefix)
        return int(digits) if digits != interface and digits.isdecimal() else None

    def addresses(self, number: int) -> LinkAddresses:
        return LinkAddresses(self.block[4 * number + 1], self.block[4 * number + 2], _LINK_PREFIX)


def choose_block(tag: str, taken: Iterable[IPv4Network], chosen_range: IPv4Network | None = None) -> IPv4Network | None:
    """A block of addresses that overlaps nothing in use. None: there is none.

    `taken`: routes, addresses and name servers of the host. Instances begin to search at different blocks.
    """
    taken = [network for network in taken if network.prefixlen > 0]
    for candidates in _RANGES if chosen_range is None else (chosen_range,):
        if candidates == _SHARED_RANGE and chosen_range is None and any(map(candidates.overlaps, taken)):
            continue
        prefix = max(_BLOCK_PREFIX, candidates.prefixlen)
        count = 1 << (prefix - candidates.prefixlen)
        first = int(tag, 16)
        for step in range(count):
            start = int(candidates.network_address) + ((first + step) % count << (32 - prefix))
            block = IPv4Network((start, prefix))
            if not any(map(block.overlaps, taken)):
                return block
    return None


@dataclass(frozen=True, slots=True)
class NameServers:
    """How names are resolved inside."""

    relay_to: tuple[str, ...] = ()
    """The host's name servers that only the host can reach: a relay on the gateway asks them."""
    replacement: str | None = None
    """Another text for /etc/resolv.conf. None: the host's own works inside."""

    def file_inside(self, gateway: IPv4Address, host_file: str) -> str | None:
        """The text of /etc/resolv.conf inside. None: the host's file."""
        if not self.relay_to:
            return self.replacement
        return f"nameserver {gateway}\n{_without_name_servers(host_file)}"


def choose_name_servers(host_file: str, systemd_file: str, own_addresses: frozenset[str]) -> NameServers:
    """`systemd_file`: /run/systemd/resolve/resolv.conf, which names the servers behind systemd's local one."""
    servers = parse_name_servers(host_file)
    if any(_is_reachable(server, own_addresses) for server in servers):
        if all(_is_reachable(server, own_addresses) for server in servers):
            return NameServers()
        kept = [server for server in servers if _is_reachable(server, own_addresses)]
        return NameServers(replacement=_resolv_conf(kept, host_file))
    real = [server for server in parse_name_servers(systemd_file) if _is_reachable(server, own_addresses)]
    if real and any(server.startswith("127.0.0.5") for server in servers):
        return NameServers(replacement=_resolv_conf(real, host_file))
    # Without a line, the C library asks 127.0.0.1.
    return NameServers(relay_to=tuple(servers) or ("127.0.0.1",))


def parse_name_servers(text: str) -> list[str]:
    words = [line.split() for line in text.splitlines()]
    return [parts[1] for parts in words if len(parts) > 1 and parts[0] == "nameserver"]


def _resolv_conf(servers: Iterable[str], host_file: str) -> str:
    return "".join(f"nameserver {server}\n" for server in servers) + _without_name_servers(host_file)


def _without_name_servers(host_file: str) -> str:
    kept = [line for line in host_file.splitlines() if line.split()[:1] in (["search"], ["domain"], ["options"])]
    return "".join(f"{line}\n" for line in kept)


def _is_reachable(server: str, own_addresses: frozenset[str]) -> bool:
    """Whether NAT leads there. Inside there is no IPv6 but on loopback, and some clouds answer for names at their
    metadata address, which is closed."""
    try:
        address = ip_address(server)
    except ValueError:
        return False
    if not isinstance(address, IPv4Address) or is_metadata_address(address):
        return False
    return not address.is_loopback and server not in own_addresses
