"""Manifests of the dev servers' namespace and its network policies. Pure.

A NetworkPolicy can only allow. "The internet, but not the control plane" is therefore "every address that is not
private": pods, services, nodes, the API server and the cloud's metadata service usually have private addresses.
Settings name what else of the private network dev servers may use (for example a package server or a file server), and
what of the cluster has public addresses.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

from gpudev.adapters.kubernetes.objects.labels import MANAGED_BY, MANAGER, RESERVATION_ID
from gpudev.domain.addresses import METADATA_NETWORKS
from gpudev.settings import KubernetesSettings

SSH_PORT = 22
_Network = IPv4Network | IPv6Network
_PRIVATE_V4 = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    # Not routed in the internet either; some clusters give them to pods, services and nodes.
    "192.0.0.0/24",
    "192.0.2.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
)
_PRIVATE_V6 = ("::1/128", "fc00::/7", "fe80::/10")
_NAT64_PREFIX = int(IPv6Address("64:ff9b::"))
_DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
_MANAGED_LABELS = {MANAGED_BY: MANAGER}


def build_namespace(settings: KubernetesSettings) -> dict[str, Any]:
    """The API server rejects pods here above Pod Security level `baseline`: no host namespaces, no host folders, no
    privileged containers."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": settings.namespace,
            "labels": {**_MANAGED_LABELS, "pod-security.kubernetes.io/enforce": "baseline"},
        },
    }


def build_dev_server_policy(settings: KubernetesSettings) -> dict[str, Any]:
    """For every dev server: SSH from anywhere; DNS and the internet as targets."""
    denied = _denied_networks(settings)
    return _build_policy(
        settings,
        "gpu-dev-servers",
        _MANAGED_LABELS,
        _MANAGED_LABELS,
        ingress=[{"ports": [{"protocol": "TCP", "port": SSH_PORT}]}],
        egress=[
            {
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
                "ports": _DNS_PORTS,
            },
            # A DNS cache on the node (NodeLocal DNSCache) has a link-local address.
            {"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": _DNS_PORTS},
            {"to": [_ip_block(cidr, _list_unreachable(settings)) for cidr in ("0.0.0.0/0", "::/0")]},
            *({"to": [_ip_block(cidr, denied)]} for cidr in settings.allowed_cidrs if not _is_within(cidr, denied)),
        ],
    )


def _list_unreachable(settings: KubernetesSettings) -> list[_Network]:
    """What "the internet" does not include. IPv4 networks also as NAT64 translates them."""
    networks = [ip_network(cidr) for cidr in (*_PRIVATE_V4, *_PRIVATE_V6)]
    networks += [network for network in METADATA_NETWORKS if not any(_contains(other, network) for other in networks)]
    networks += _denied_networks(settings)
    translated = [
        IPv6Network((_NAT64_PREFIX | int(network.network_address), 96 + network.prefixlen))
        for network in networks
        if isinstance(network, IPv4Network)
    ]
    return [*networks, *translated]


def _denied_networks(settings: KubernetesSettings) -> list[_Network]:
    return [ip_network(cidr) for cidr in settings.denied_cidrs]


def _ip_block(cidr: str, denied: Iterable[_Network]) -> dict[str, Any]:
    """The API server accepts as exceptions only networks within the block."""
    block = ip_network(cidr)
    exceptions = [str(network) for network in denied if _contains(block, network)]
    return {"ipBlock": {"cidr": str(block), **({"except": exceptions} if exceptions else {})}}


def _is_within(cidr: str, networks: Iterable[_Network]) -> bool:
    return any(_contains(network, ip_network(cidr)) for network in networks)


def _contains(outer: _Network, inner: _Network) -> bool:
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def build_gang_policy(settings: KubernetesSettings, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """For the members of one gang: all traffic among them."""
    members = {RESERVATION_ID: labels[RESERVATION_ID]}
    peers = [{"podSelector": {"matchLabels": members}}]
    return _build_policy(settings, name, labels, members, ingress=[{"from": peers}], egress=[{"to": peers}])


def _build_policy(
    settings: KubernetesSettings,
    name: str,
    labels: dict[str, str],
    members: dict[str, str],
    *,
    ingress: list[dict[str, Any]],
    egress: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {
            "podSelector": {"matchLabels": members},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }
