"""Names, addresses, name servers and firewall rules of the dev servers' own networks."""

import asyncio
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudev.adapters.local.network import dns_relay
from gpudev.adapters.local.network.plan import (
    INTERFACE_PREFIX,
    NameServers,
    NetworkPlan,
    choose_block,
    choose_name_servers,
    instance_tag,
)
from gpudev.adapters.local.network.rules import (
    FirewallPlan,
    iptables_jumps,
    iptables_permits,
    iptables_rules,
    nft_rules,
)

TAG = "00beef"
PLAN = NetworkPlan(TAG, IPv4Network("100.64.16.0/20"))
NETWORKS = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 32)).map(lambda pair: IPv4Network(pair, strict=False))
RESOLVED_STUB = "nameserver 127.0.0.53\noptions edns0\nsearch lab.example\n"


def test_interface_names_fit_the_kernel_and_lead_back_to_their_number() -> None:
    for number in (0, 7, PLAN.capacity + 1):
        name = PLAN.interface(number)
        assert len(name) <= 15
        assert name.startswith(INTERFACE_PREFIX)
        assert PLAN.find_number(name) == number
    assert PLAN.find_number("eth0") is None
    assert PLAN.find_number(f"{PLAN.interface_prefix}x") is None
    assert PLAN.find_number(NetworkPlan("123456", PLAN.block).interface(1)) is None


def test_every_network_has_addresses_of_its_own_in_the_block() -> None:
    both = [PLAN.addresses(number) for number in (*range(PLAN.capacity), *PLAN.probe_numbers)]
    links = [IPv4Network((pair.gateway, pair.prefix), strict=False) for pair in both]
    assert len(set(links)) == len(links) == PLAN.block.num_addresses // 4
    assert all(link.subnet_of(PLAN.block) for link in links)
    assert all({pair.gateway, pair.inside} == set(link.hosts()) for pair, link in zip(both, links, strict=True))


def test_two_state_folders_have_different_names() -> None:
    assert instance_tag(Path("/srv/a")) != instance_tag(Path("/srv/b"))
    assert len(instance_tag(Path("/srv/a"))) == len(TAG)


@given(st.lists(NETWORKS, max_size=20), st.integers(0, 16**6 - 1))
def test_a_chosen_block_overlaps_nothing_that_is_taken(taken: list[IPv4Network], number: int) -> None:
    block = choose_block(f"{number:06x}", taken)
    assert block is None or not any(block.overlaps(network) for network in taken)


def test_a_default_route_takes_nothing_and_a_vpn_takes_the_whole_shared_range() -> None:
    shared = choose_block(TAG, [IPv4Network("0.0.0.0/0"), IPv4Network("192.0.2.0/24")])
    assert shared is not None
    assert shared.subnet_of(IPv4Network("100.64.0.0/10"))
    beside_vpn = choose_block(TAG, [IPv4Network("100.101.102.103/32")])
    assert beside_vpn is not None
    assert beside_vpn.subnet_of(IPv4Network("10.0.0.0/8"))
    everything = [IPv4Network(text) for text in ("100.64.0.0/10", "10.0.0.0/8", "172.16.0.0/12")]
    assert choose_block(TAG, everything) is None


def test_a_range_of_the_operators_is_used_and_no_other() -> None:
    chosen = IPv4Network("10.77.0.0/22")
    assert choose_block(TAG, [], chosen) == chosen
    assert choose_block(TAG, [IPv4Network("10.77.1.0/24")], chosen) is None


@pytest.mark.parametrize(
    ("host_file", "systemd_file", "expected"),
    [
        ("nameserver 192.0.2.53\n", "", NameServers()),
        (RESOLVED_STUB, "nameserver 192.0.2.53\n", NameServers(replacement="nameserver 192.0.2.53\n")),
        ("nameserver 127.0.0.1\n", "nameserver 192.0.2.53\n", NameServers(relay_to=("127.0.0.1",))),
        (RESOLVED_STUB, "nameserver 2001:db8::53\n", NameServers(relay_to=("127.0.0.53",))),
        ("nameserver 192.0.2.7\n", "", NameServers(relay_to=("192.0.2.7",))),
        ("nameserver ::1\nnameserver 192.0.2.53\n", "", NameServers(replacement="nameserver 192.0.2.53\n")),
        ("", "", NameServers(relay_to=("127.0.0.1",))),
        ("nameserver 169.254.169.254\n", "", NameServers(relay_to=("169.254.169.254",))),
        (RESOLVED_STUB, "nameserver 168.63.129.16\n", NameServers(relay_to=("127.0.0.53",))),
    ],
    ids=["real", "systemd", "local", "only-ipv6", "the-host-itself", "mixed", "none", "google-cloud", "azure"],
)
def test_name_servers_are_those_that_can_be_reached_from_inside(
    host_file: str, systemd_file: str, expected: NameServers
) -> None:
    chosen = choose_name_servers(host_file, systemd_file, frozenset({"192.0.2.7", "127.0.0.1"}))
    assert chosen.relay_to == expected.relay_to
    assert (chosen.replacement or "").startswith(expected.replacement or "")
    assert (chosen.replacement is None) == (expected.replacement is None)


def test_search_domains_and_options_of_the_host_hold_inside_too() -> None:
    gateway = PLAN.addresses(3).gateway
    chosen = choose_name_servers(RESOLVED_STUB, "", frozenset())
    assert chosen.file_inside(gateway, RESOLVED_STUB) == (f"nameserver {gateway}\noptions edns0\nsearch lab.example\n")
    assert NameServers().file_inside(gateway, RESOLVED_STUB) is None


async def test_one_dev_server_cannot_keep_the_relay_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[bytes] = []

    async def ask(_: str, query: bytes) -> bytes:
        answered.append(query)
        return query

    now = 1000.0
    monkeypatch.setattr(dns_relay, "_ask", ask)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    endpoint = dns_relay._Endpoint(("127.0.0.1",))
    for _ in range(2000):
        endpoint.datagram_received(bytes(12), ("100.64.0.2", 5353))
        await asyncio.gather(*endpoint._tasks)
    assert len(answered) == 300
    now += 1
    endpoint.datagram_received(bytes(12), ("100.64.0.2", 5353))
    await asyncio.gather(*endpoint._tasks)
    assert len(answered) == 301


def test_rules_name_the_uplinks_only_where_we_enabled_forwarding() -> None:
    plain, routed = FirewallPlan(PLAN), FirewallPlan(PLAN, ("ens3", "ib0"))
    assert "ens3" not in nft_rules(plain) + iptables_rules(plain)
    assert 'iifname { "ens3", "ib0" } drop' in nft_rules(routed)
    assert f"-A {routed.chains[2]} -i ib0 -j DROP" in iptables_rules(routed)


def test_the_host_answers_for_names_only_where_there_is_a_relay() -> None:
    without, with_relay = FirewallPlan(PLAN), FirewallPlan(PLAN, has_relay=True)
    assert "dport" not in nft_rules(without) + iptables_rules(without)
    assert "th dport 53 accept" in nft_rules(with_relay)
    assert iptables_rules(with_relay).count("--dport 53 -j ACCEPT") == 2


def test_metadata_addresses_are_rejected_before_anything_is_accepted() -> None:
    for text in (nft_rules(FirewallPlan(PLAN)), iptables_rules(FirewallPlan(PLAN))):
        assert text.index("169.254.0.0/16") < text.index(f"{PLAN.block}")


def test_a_kernel_that_cannot_count_connections_gets_rules_without_that() -> None:
    for make_rules in (nft_rules, iptables_rules):
        assert "8192" in make_rules(FirewallPlan(PLAN))
        assert "count over" not in make_rules(FirewallPlan(PLAN, max_connections=None))
        assert "connlimit" not in make_rules(FirewallPlan(PLAN, max_connections=None))


def test_chain_names_fit_iptables_and_every_jump_leads_to_one_of_them() -> None:
    plan = FirewallPlan(PLAN)
    assert all(len(chain) <= 28 for chain in plan.chains)
    assert {rule[-1] for _, _, rule in iptables_jumps(plan)} == set(plan.chains)
    assert all(PLAN.interface_prefix in " ".join(rule) for _, _, rule in iptables_permits(plan))
