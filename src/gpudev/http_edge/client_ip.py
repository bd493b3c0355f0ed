"""The client's address: the peer's, or the one forwarded by a trusted proxy.

X-Forwarded-For is read from its end; the first address that is not a trusted proxy is the client. Entries before it
may be forged by the client.
"""

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MAX_HOPS = 20


class ClientIpResolver:
    def __init__(self, trusted: Sequence[str]) -> None:
        """Addresses or networks. Raises ValueError for anything else."""
        self._trusted: list[Network] = [ipaddress.ip_network(text, strict=False) for text in trusted]

    def resolve(self, peer: str | None, forwarded_for: Sequence[str]) -> str | None:
        """`forwarded_for`: every X-Forwarded-For header, in order. None: the request came over a unix socket."""
        if not self._trusted or peer is None or not self._is_trusted(peer):
            return peer
        forwarded = ",".join(forwarded_for).split(",")
        client = peer
        for entry in reversed(forwarded[-_MAX_HOPS:]):
            address = _parse_address(entry)
            if address is None:
                break  # not written by a trusted proxy
            client = address
            if not self._is_trusted(address):
                break
        return client

    def _is_trusted(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)


def _parse_address(text: str) -> str | None:
    """An entry of X-Forwarded-For. Some proxies add a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
