"""Firewall rules for the dev servers' own networks, as text for `nft` and for `iptables`. Pure.

The rules go by interface names and never change while dev servers come and go. A dev server reaches the outside through
NAT. It reaches neither the host and its containers, nor another dev server, nor cloud metadata, and nobody outside
reaches it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudev.adapters.local.network.plan import INTERFACE_PREFIX, NetworkPlan
from gpudev.domain.addresses import METADATA_NETWORKS

LISTENER_MARK = 0x67
"""On the sockets of the host's network that are passed into dev servers: no connection may begin from them."""
_METADATA = tuple(str(network) for network in METADATA_NETWORKS if network.version == 4)


@dataclass(frozen=True, slots=True)
class FirewallPlan:
    networks: NetworkPlan
    uplinks: tuple[str, ...] = ()
    """Interfaces whose forwarding we enabled. They forward nothing but what belongs to dev servers."""
    inner_bridges: tuple[str, ...] = ()
    """Bridges of containers and virtual machines on this machine. They are a part of it."""
    has_relay: bool = False
    """Whether dev servers may ask the gateway for names."""
    max_connections: int | None = 8192
    """At once, for each dev server: all of them share the kernel's table of connections with the host. None: no limit,
    for kernels that cannot count them."""

    @property
    def table(self) -> str:
        return f"gpu_dev_{self.networks.tag}"

    @property
    def chains(self) -> tuple[str, str, str, str]:
        """The chains for iptables: input, output, forward, NAT."""
        tag = self.networks.tag
        return f"GPUDEV-{tag}-IN", f"GPUDEV-{tag}-OUT", f"GPUDEV-{tag}-FWD", f"GPUDEV-{tag}-NAT"


def nft_rules(plan: FirewallPlan) -> str:
    """Replaces the whole table at once: connections continue, and no packet passes in between."""
    own, every = f'"{plan.networks.interface_prefix}*"', f'"{INTERFACE_PREFIX}*"'
    relay = f"iifname {own} ip daddr {plan.networks.block} meta l4proto {{ tcp, udp }} th dport 53 accept"
    # The host's name server may be a container that has the port on all of the host's addresses.
    original = f"ct original ip daddr {plan.networks.block} meta l4proto {{ tcp, udp }} ct original proto-dst 53"
    relay_of_container = f"iifname {own} ct status dnat {original} accept"
    count = f"add @connections {{ ip saddr ct count over {plan.max_connections} }}"
    limit = f"iifname {own} ct state new {count} reject with icmpx type admin-prohibited"
    bridges = f"iifname {own} oifname {{ {_quoted(plan.inner_bridges)} }} reject with icmpx type admin-prohibited"
    uplinks = _quoted(plan.uplinks)
    uplink_rules = f"""
    iifname {{ {uplinks} }} ct state established,related accept
    iifname {{ {uplinks} }} ct status dnat accept
    iifname {{ {uplinks} }} drop"""
    return f"""table inet {plan.table}
delete table inet {plan.table}
table inet {plan.table} {{
  set connections {{ type ipv4_addr; size 65535; flags dynamic; }}
  chain input {{
    type filter hook input priority -10; policy accept;
    iifname {own} ct state established,related accept
    {relay if plan.has_relay else ""}
    iifname {own} reject with icmpx type admin-prohibited
  }}
  chain output {{
    type filter hook output priority -10; policy accept;
    meta mark {LISTENER_MARK:#x} ct state new reject with icmpx type admin-prohibited
  }}
  chain forward {{
    type filter hook forward priority -10; policy accept;
    iifname {own} oifname {every} reject with icmpx type admin-prohibited
    iifname {own} ip daddr {{ {", ".join(_METADATA)} }} reject with icmpx type admin-prohibited
    {relay_of_container if plan.has_relay else ""}
    iifname {own} ct status dnat reject with icmpx type admin-prohibited
    {bridges if plan.inner_bridges else ""}
    {limit if plan.max_connections is not None else ""}
    iifname {own} ip saddr {plan.networks.block} accept
    iifname {own} drop
    oifname {own} ct state established,related accept
    oifname {own} drop
    iifname {every} accept
    oifname {every} accept{uplink_rules if plan.uplinks else ""}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {plan.networks.block} oifname != {every} masquerade
  }}
}}
"""


def _quoted(interfaces: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in interfaces)


def iptables_rules(plan: FirewallPlan) -> str:
    """For `iptables-restore --noflush`, which replaces the chains of each table at once."""
    own, every, block = f"{plan.networks.interface_prefix}+", f"{INTERFACE_PREFIX}+", plan.networks.block
    incoming, outgoing, forwarded, nat = plan.chains
    established = "-m conntrack --ctstate ESTABLISHED,RELATED"
    reject = "-j REJECT --reject-with icmp-admin-prohibited"
    limit = f"-m connlimit --connlimit-above {plan.max_connections} --connlimit-mask 32 --connlimit-saddr"
    relay = [f"-A {incoming} -d {block} -p {protocol} --dport 53 -j ACCEPT" for protocol in ("tcp", "udp")]
    relay_of_container = f"-m conntrack --ctstate DNAT --ctorigdst {block} --ctorigdstport 53"
    lines = [
        "*filter",
        *(f":{chain} - [0:0]" for chain in (incoming, outgoing, forwarded)),
        f"-A {incoming} {established} -j ACCEPT",
        *(relay if plan.has_relay else ()),
        f"-A {incoming} {reject}",
        f"-A {outgoing} -m mark --mark {LISTENER_MARK:#x} -m conntrack --ctstate NEW {reject}",
        f"-A {forwarded} -i {own} -o {every} {reject}",
        *(f"-A {forwarded} -i {own} -d {network} {reject}" for network in _METADATA),
        *((f"-A {forwarded} -i {own} {relay_of_container} -j ACCEPT",) if plan.has_relay else ()),
        # A port of the host that leads to a container: the destination was changed before.
        f"-A {forwarded} -i {own} -m conntrack --ctstate DNAT {reject}",
        *(f"-A {forwarded} -i {own} -o {bridge} {reject}" for bridge in plan.inner_bridges),
        *((f"-A {forwarded} -i {own} {limit} {reject}",) if plan.max_connections is not None else ()),
        f"-A {forwarded} -i {own} -s {block} -j ACCEPT",
        f"-A {forwarded} -i {own} -j DROP",
        f"-A {forwarded} -o {own} {established} -j ACCEPT",
        f"-A {forwarded} -o {own} -j DROP",
        f"-A {forwarded} -i {every} -j RETURN",
        f"-A {forwarded} -o {every} -j RETURN",
        *(_iptables_uplink_rules(forwarded, plan.uplinks)),
        "COMMIT",
        "*nat",
        f":{nat} - [0:0]",
        f"-A {nat} -s {block} ! -o {every} -j MASQUERADE",
        "COMMIT",
    ]
    return "".join(f"{line}\n" for line in lines)


def _iptables_uplink_rules(chain: str, uplinks: Sequence[str]) -> list[str]:
    return [
        rule
        for name in uplinks
        for rule in (
            f"-A {chain} -i {name} -m conntrack --ctstate ESTABLISHED,RELATED,DNAT -j RETURN",
            f"-A {chain} -i {name} -j DROP",
        )
    ]


def iptables_jumps(plan: FirewallPlan) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Table, chain and rule of each jump into our chains."""
    incoming, outgoing, forwarded, nat = plan.chains
    return (
        ("filter", "INPUT", ("-i", f"{plan.networks.interface_prefix}+", "-j", incoming)),
        ("filter", "OUTPUT", ("-j", outgoing)),
        ("filter", "FORWARD", ("-j", forwarded)),
        ("nat", "POSTROUTING", ("-j", nat)),
    )


def iptables_permits(plan: FirewallPlan) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Beside the rules of `nft`: where another program (such as Docker) has iptables drop what is forwarded.

    What our own table rejects stays rejected: every table must accept a packet.
    """
    own = f"{plan.networks.interface_prefix}+"
    established = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
    return (
        ("filter", "FORWARD", ("-i", own, "-j", "ACCEPT")),
        ("filter", "FORWARD", ("-o", own, *established, "-j", "ACCEPT")),
    )


def iptables_relay_permits(plan: FirewallPlan) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The same for queries to the relay, where another program (such as ufw) has iptables drop what comes in."""
    own = f"{plan.networks.interface_prefix}+"
    return tuple(
        ("filter", "INPUT", ("-i", own, "-p", kind, "--dport", "53", "-j", "ACCEPT")) for kind in ("udp", "tcp")
    )
