"""Manifests of the dev servers' namespace and its network policies. Pure.

A NetworkPolicy can only allow. "The internet, but not the control plane" is therefore "every address that is not
private": pods, services, nodes, the API server and the cloud's metadata service all have private addresses. Settings
name what else of the private network dev servers may use (for example a package server or a file server).
"""

from ipaddress import ip_network
from typing import Any

from gpudev.adapters.kubernetes.objects.labels import MANAGED_BY, MANAGER, RESERVATION_ID
from gpudev.settings import KubernetesSettings

SSH_PORT = 22
PRIVATE_V4 = ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
PRIVATE_V6 = ("::1/128", "fc00::/7", "fe80::/10")
"""fc00::/7 includes fd00:ec2::254, the metadata address of some clouds."""
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
            {
                "to": [
                    {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE_V4)}},
                    {"ipBlock": {"cidr": "::/0", "except": list(PRIVATE_V6)}},
                ]
            },
            *({"to": [{"ipBlock": {"cidr": str(ip_network(cidr))}}]} for cidr in settings.allowed_cidrs),
        ],
    )


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
