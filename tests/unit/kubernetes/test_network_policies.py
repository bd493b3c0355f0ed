"""What a dev server may reach, and who may reach it, by the policies that come with it."""

from dataclasses import replace

import pytest

from gpudev.adapters.kubernetes.objects import labels, network_policies
from gpudev.settings import KubernetesSettings
from support.kubernetes.policy_rules import Pod, allows

SETTINGS = KubernetesSettings()


def dev_server(reservation: str, address: str) -> Pod:
    own = {labels.MANAGED_BY: labels.MANAGER, labels.RESERVATION_ID: reservation}
    return Pod(SETTINGS.namespace, own, address)


ADA, BOB = dev_server("ada", "10.1.0.7"), dev_server("bob", "10.1.0.8")
SECOND_OF_ADA = dev_server("ada", "10.1.0.9")
GANG = network_policies.build_gang_policy(SETTINGS, "gang", dict(ADA.labels))
POLICIES = [network_policies.build_dev_server_policy(SETTINGS), GANG]
OUT_OF_REACH = {
    "another user's dev server": (BOB, 8888),
    "another user's ssh, by the pod's address": (BOB, 22),
    "the API server's service": (Pod(None, address="10.96.0.1"), 443),
    "the API server's endpoint": (Pod(None, address="172.31.4.4"), 6443),
    "PostgreSQL": (Pod("gpu-controlplane", {"app": "postgres"}, "10.1.1.1"), 5432),
    "the API's pod": (Pod("gpu-controlplane", {"app": "api-service"}, "10.1.1.2"), 8080),
    "the processor's metrics": (Pod("gpu-controlplane", {"app": "reservation-processor"}, "10.1.1.3"), 9090),
    "a kubelet": (Pod(None, address="192.168.1.4"), 10250),
    "the metadata of AWS and Google Cloud": (Pod(None, address="169.254.169.254"), 80),
    "the metadata of AWS over IPv6": (Pod(None, address="fd00:ec2::254"), 80),
    "the metadata of Alibaba Cloud": (Pod(None, address="100.100.100.200"), 80),
    "the metadata of Oracle Cloud": (Pod(None, address="192.0.0.192"), 80),
    "the metadata of Azure": (Pod(None, address="168.63.129.16"), 80),
    "pods of a cluster that uses reserved addresses": (Pod(None, address="240.10.0.1"), 5432),
    "services of a cluster that uses test networks": (Pod(None, address="198.18.0.9"), 443),
    "a private address through NAT64": (Pod(None, address="64:ff9b::a00:1"), 443),
    "the metadata address through NAT64": (Pod(None, address="64:ff9b::a9fe:a9fe"), 80),
    "something in kube-system besides DNS": (Pod("kube-system", {}, "10.1.2.1"), 443),
}


@pytest.mark.parametrize("what", OUT_OF_REACH)
def test_a_dev_server_does_not_reach(what: str) -> None:
    target, port = OUT_OF_REACH[what]
    assert not allows(POLICIES, ADA, target, port)


@pytest.mark.parametrize(
    ("target", "port", "protocol"),
    [
        (Pod(None, address="1.1.1.1"), 443, "TCP"),
        (Pod(None, address="2606:4700:4700::1111"), 443, "TCP"),
        (Pod(None, address="64:ff9b::101:101"), 443, "TCP"),
        (Pod("kube-system", {"k8s-app": "kube-dns"}, "10.1.2.2"), 53, "UDP"),
        (Pod(None, address="169.254.20.10"), 53, "UDP"),
        (SECOND_OF_ADA, 29500, "TCP"),
    ],
)
def test_a_dev_server_reaches_the_internet_names_and_its_own_gang(target: Pod, port: int, protocol: str) -> None:
    assert allows(POLICIES, ADA, target, port, protocol)


def test_ssh_comes_in_from_anywhere_and_nothing_else_does() -> None:
    for source in (Pod(None, address="203.0.113.5"), Pod("gpu-controlplane", {"app": "api-service"}, "10.1.1.2")):
        assert allows(POLICIES, source, ADA, 22)
        assert not allows(POLICIES, source, ADA, 8888)


def test_parts_of_the_cluster_with_public_addresses_can_be_denied() -> None:
    settings = replace(SETTINGS, denied_cidrs=("52.1.2.3/32", "2600:1f14:abc::/56"))
    policies = [network_policies.build_dev_server_policy(settings)]
    for address in ("52.1.2.3", "2600:1f14:abc:1::7", "64:ff9b::3401:203"):
        assert not allows(policies, ADA, Pod(None, address=address), 443), address
    assert allows(policies, ADA, Pod(None, address="52.1.2.4"), 443)


def test_what_is_denied_is_taken_out_of_what_is_allowed() -> None:
    allowed = ("10.20.0.0/16", "10.30.1.0/24", "10.40.0.0/16")
    settings = replace(SETTINGS, allowed_cidrs=allowed, denied_cidrs=("10.20.7.0/24", "10.30.0.0/16", "10.40.0.0/16"))
    policies = [network_policies.build_dev_server_policy(settings)]
    assert allows(policies, ADA, Pod(None, address="10.20.3.4"), 443)
    for address in ("10.20.7.1", "10.30.1.1", "10.40.0.1"):
        assert not allows(policies, ADA, Pod(None, address=address), 443), address


def test_an_exception_is_always_within_its_block_or_the_api_server_rejects_the_policy() -> None:
    from ipaddress import ip_network

    settings = replace(SETTINGS, allowed_cidrs=("10.20.0.0/16",), denied_cidrs=("10.20.7.0/24", "2600::/16"))
    for rule in network_policies.build_dev_server_policy(settings)["spec"]["egress"]:
        for peer in rule["to"]:
            block = peer.get("ipBlock", {})
            for cidr in block.get("except", ()):
                outer, inner = ip_network(block["cidr"]), ip_network(cidr)
                assert outer.version == inner.version
                assert inner.subnet_of(outer)  # type: ignore[arg-type]
                assert inner != outer
