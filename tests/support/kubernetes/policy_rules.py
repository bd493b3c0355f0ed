"""What NetworkPolicies allow, as the Kubernetes documentation defines it: for tests of rendered policies.

    allows(policies, Pod("gpu-dev", {...}, "10.1.0.7"), Pod("gpu-controlplane", {...}, "10.1.0.8"), 5432)

Both ends count: the source's egress and the target's ingress. A pod that no policy selects is open in that direction.
What a network plugin does with a policy is another question: many ignore them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Pod:
    """Or anything else with an address: then without a namespace."""

    namespace: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.1.0.1"


def allows(policies: Sequence[Policy], source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
    return _is_open(policies, source, target, "Egress", port, protocol) and _is_open(
        policies, target, source, "Ingress", port, protocol
    )


def _is_open(policies: Sequence[Policy], own: Pod, peer: Pod, direction: str, port: int, protocol: str) -> bool:
    selecting = [policy for policy in policies if direction in policy["spec"]["policyTypes"] and _selects(policy, own)]
    if not selecting:
        return True
    names = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    rules = [rule for policy in selecting for rule in policy["spec"].get(names[0]) or ()]
    return any(
        _matches_port(rule.get("ports"), port, protocol) and _matches_peer(rule.get(names[1]), peer, own.namespace)
        for rule in rules
    )


def _selects(policy: Policy, pod: Pod) -> bool:
    return pod.namespace == policy["metadata"]["namespace"] and _matches(policy["spec"]["podSelector"], pod.labels)


def _matches_port(ports: Iterable[Mapping[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        one.get("protocol", "TCP") == protocol and ("port" not in one or one["port"] <= port <= _last(one))
        for one in ports
    )


def _last(one: Mapping[str, Any]) -> int:
    last: int = one.get("endPort", one["port"])
    return last


def _matches_peer(peers: Iterable[Mapping[str, Any]] | None, pod: Pod, own_namespace: str | None) -> bool:
    return not peers or any(_is_peer(peer, pod, own_namespace) for peer in peers)


def _is_peer(peer: Mapping[str, Any], pod: Pod, own_namespace: str | None) -> bool:
    if block := peer.get("ipBlock"):
        # Pods too: whether a plugin sees a pod's own address depends on the plugin, so it must not matter.
        return _within(pod.address, block["cidr"]) and not any(_within(pod.address, c) for c in block.get("except", ()))
    if pod.namespace is None:
        return False
    if "namespaceSelector" in peer:
        if not _matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": pod.namespace}):
            return False
    elif pod.namespace != own_namespace:
        return False
    return _matches(peer.get("podSelector", {}), pod.labels)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for wanted in selector.get("matchExpressions", ()):
        is_listed = labels.get(wanted["key"]) in wanted["values"]
        assert wanted["operator"] in ("In", "NotIn")
        if is_listed != (wanted["operator"] == "In"):
            return False
    return True


def _within(address: str, cidr: str) -> bool:
    return ip_address(address) in ip_network(cidr)
