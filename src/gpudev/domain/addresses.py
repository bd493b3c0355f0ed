"""Network addresses: where the API listens; cloud metadata, which is never connected to."""

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from gpudev.domain.errors import Invalid

IpAddress = IPv4Address | IPv6Address
METADATA_NETWORKS = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: AWS, Google Cloud and most others
        "fe80::/10",
        "fd00:ec2::/32",  # AWS
        "fd20:ce::/32",  # Google Cloud
        "100.100.100.200/32",  # Alibaba Cloud
        "192.0.0.192/32",  # Oracle Cloud
        "168.63.129.16/32",  # Azure
        "fd00:42::42/128",  # Scaleway
    )
)
"""No dev server or service of ours is ever in these networks."""
_NAT64_NETWORK = ip_network("64:ff9b::/96")
"""IPv4 addresses as seen from IPv6-only networks (NAT64)."""


def parse_address(text: str) -> IpAddress:
    """Unwraps IPv4 addresses written as IPv6. Raises ValueError."""
    address = ip_address(text.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return address
    if address in _NAT64_NETWORK:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_metadata_address(address: IpAddress) -> bool:
    return any(address in network for network in METADATA_NETWORKS)


# Listen addresses: ADDRESS[:PORT].


DEFAULT_LISTEN_PORT = 7443
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"https://{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """192.0.2.7, 192.0.2.7:7443, lab.example.org, [2001:db8::7]:7443. Raises Invalid.

    Rejects wildcard addresses: clients connect to this address."""
    spelled = text.strip()
    if bracketed := re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::([0-9]{1,5}))?", spelled):
        host, port = bracketed.groups()
    elif spelled.count(":") > 1:
        host, port = spelled, None
    else:
        host, _, port = spelled.partition(":")
        if ":" in spelled and not re.fullmatch(r"[0-9]{1,5}", port):
            raise Invalid(f"{text[:80]!r} has no port after its colon")
    address = _find_ip(host)
    if address is None and (not _HOST_NAME.fullmatch(host) or re.fullmatch(r"[0-9.]+", host)):
        raise Invalid(
            f"invalid address {text[:80]!r} (expected e.g. 192.0.2.7:{DEFAULT_LISTEN_PORT} or lab.example.org)"
        )
    if address is not None and address.is_unspecified:
        raise Invalid(f"{host} is a wildcard address: name the address by which clients reach this machine")
    number = int(port) if port else DEFAULT_LISTEN_PORT
    if not 0 < number < 65_536:
        raise Invalid(f"invalid port {number}")
    return ListenAddress(host if address is None else str(address), number)


def parse_bind_address(text: str) -> ListenAddress:
    """ADDRESS:PORT of an internal listener. Wildcards are allowed (0.0.0.0:9090, [::]:9090). Raises Invalid."""
    spelled = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\s]+)):([0-9]{1,5})", text.strip())
    host = (spelled[1] or spelled[2]) if spelled else ""
    if spelled is None or not 0 < int(spelled[3]) < 65_536 or not (_find_ip(host) or _HOST_NAME.fullmatch(host)):
        raise Invalid(f"invalid address {text[:80]!r} (expected ADDRESS:PORT, e.g. 127.0.0.1:9090 or 0.0.0.0:9090)")
    return ListenAddress(host, int(spelled[3]))


def is_loopback_host(host: str) -> bool:
    address = _find_ip(host)
    return address.is_loopback if address is not None else host == "localhost"


def _find_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
