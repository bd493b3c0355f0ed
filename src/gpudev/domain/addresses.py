"""Addresses to which nobody is ever led, whoever asks: where clouds tell a machine its secrets."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

IpAddress = IPv4Address | IPv6Address
_METADATA_NETWORKS = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: AWS, Google Cloud and most others
        "fe80::/10",
        "fd00:ec2::/32",  # AWS
        "fd20:ce::/32",  # Google Cloud
    )
)
"""Nothing of ours, and no machine that anybody works with, is ever there."""
_NAT64_NETWORK = ip_network("64:ff9b::/96")
"""IPv4 addresses as networks that speak IPv6 alone write them (NAT64)."""


def parse_address(text: str) -> IpAddress:
    """An IPv4 address that is written as an IPv6 one is the same address. Raises ValueError."""
    address = ip_address(text.partition("%")[0])
    if not isinstance(address, IPv6Address):
        return address
    if address in _NAT64_NETWORK:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def is_metadata_address(address: IpAddress) -> bool:
    return any(address in network for network in _METADATA_NETWORKS)
