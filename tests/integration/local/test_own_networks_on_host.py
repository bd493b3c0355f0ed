"""What own networks change on the machine: it is as it was afterwards, and others who change it are respected."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpudev.adapters.local.network import claims, firewall, links, own_networks
from gpudev.adapters.local.network.own_networks import (
    NetworksUnavailable,
    OwnNetworks,
    open_own_networks,
    remove_own_networks,
)
from gpudev.adapters.local.network.plan import INTERFACE_PREFIX, instance_tag
from gpudev.adapters.local.network.rules import FirewallPlan
from gpudev.domain.errors import Unavailable
from support.local.network_tools import (
    FIREWALLS,
    NEEDS_OWN_NETWORKS,
    listening,
    output,
    reaches,
    traces_on_host,
)
from support.polling import eventually

pytestmark = [pytest.mark.slow, *NEEDS_OWN_NETWORKS]
NOBODY = 65534


def test_the_host_is_afterwards_as_it_was(program: firewall.Firewall, state_dir: Path) -> None:
    tag = instance_tag(state_dir)
    assert traces_on_host(tag) == []
    for _ in range(2):
        networks = open_own_networks(state_dir)
        network = networks.take()
        assert len(traces_on_host(tag)) > 1
        networks.close()
        remove_own_networks(state_dir)
        network.close()
        remove_own_networks(state_dir)
        assert traces_on_host(tag) == []


def test_the_last_of_several_instances_restores_forwarding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine's interfaces those are changed that did not forward before the first one."""
    host = replace(links.read_host_networks(INTERFACE_PREFIX), uplinks=("off", "on"))
    forwarding = {"off": False, "on": True}
    monkeypatch.setattr(claims, "_FOLDER", tmp_path / "claims")
    monkeypatch.setattr(links, "read_host_networks", lambda _: host)
    monkeypatch.setattr(links, "is_forwarding", forwarding.__getitem__)
    monkeypatch.setattr(links, "set_forwarding", lambda name, on: forwarding.update({name: on}))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        open_own_networks(folder).close()
        assert forwarding == {"off": True, "on": True}
    remove_own_networks(folders[0])
    assert forwarding == {"off": True, "on": True}
    remove_own_networks(folders[1])
    assert forwarding == {"off": False, "on": True}


@dataclass
class FakeForwarding:
    """The machine's interfaces, as somebody else changes them."""

    uplinks: tuple[str, ...]
    """With a route."""
    is_on: dict[str, bool]
    is_router: bool = False

    def become_router(self) -> None:
        """As Docker does when it starts: the kernel then has every interface forward."""
        self.is_router = True
        self.is_on = dict.fromkeys(self.is_on, True)


@pytest.fixture
def forwarding(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeForwarding]:
    fake = FakeForwarding(("lan",), {"lan": False, "vpn": False})
    host, existing = links.read_host_networks(INTERFACE_PREFIX), links.list_interfaces
    monkeypatch.setattr(claims, "_FOLDER", tmp_path / "claims")
    monkeypatch.setattr(links, "read_host_networks", lambda _: replace(host, uplinks=fake.uplinks))
    monkeypatch.setattr(links, "list_interfaces", lambda: [*existing(), *fake.is_on])
    monkeypatch.setattr(links, "is_forwarding", lambda name: fake.is_on.get(name, True))
    monkeypatch.setattr(links, "is_router", lambda: fake.is_router)
    monkeypatch.setattr(links, "set_forwarding", lambda name, on: fake.is_on.update({name: on}))
    yield fake
    remove_own_networks(state_dir)  # while its claim can be found


def test_forwarding_that_somebody_else_has_enabled_meanwhile_stays(state_dir: Path, forwarding: FakeForwarding) -> None:
    open_own_networks(state_dir).close()
    assert forwarding.is_on == {"lan": True, "vpn": False}
    forwarding.become_router()
    remove_own_networks(state_dir)
    assert forwarding.is_on == {"lan": True, "vpn": True}


def test_what_the_machine_forwards_for_others_passes_once_somebody_has_made_it_a_router(
    state_dir: Path, forwarding: FakeForwarding
) -> None:
    networks = open_own_networks(state_dir)
    assert networks._claim.uplinks == ("lan",)
    forwarding.become_router()
    assert networks.ensure_rules()
    assert networks._claim.uplinks == ()
    assert not networks.ensure_rules()
    networks.close()
    remove_own_networks(state_dir)
    assert forwarding.is_on == {"lan": True, "vpn": True}


def test_an_interface_that_gets_its_route_later_is_used_and_restored(
    state_dir: Path, forwarding: FakeForwarding
) -> None:
    """At boot, addresses may come after us; a VPN may come at any time."""
    networks = open_own_networks(state_dir)
    forwarding.uplinks = ("lan", "vpn")
    assert networks.ensure_rules()
    assert forwarding.is_on == {"lan": True, "vpn": True}
    assert networks._claim.uplinks == ("lan", "vpn")
    forwarding.uplinks = ("lan",)  # a route may go for a while
    assert not networks.ensure_rules()
    networks.close()
    remove_own_networks(state_dir)
    assert forwarding.is_on == {"lan": False, "vpn": False}


def test_forwarding_that_somebody_switched_off_is_switched_on_again(
    state_dir: Path, forwarding: FakeForwarding
) -> None:
    networks = open_own_networks(state_dir)
    forwarding.is_on["lan"] = False
    networks.ensure_rules()
    networks.close()
    assert forwarding.is_on["lan"]


def test_instances_do_not_reach_each_others_dev_servers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        taken = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            stack.callback(remove_own_networks, folder)
            opened = open_own_networks(folder)
            stack.callback(opened.close)
            taken.append((opened, stack.enter_context(contextlib.closing(opened.take()))))
        (_, alice), (others, bob) = taken
        address = str(others.plan.addresses(bob.network_id.number).inside)
        with listening(address, bob.namespace) as neighbour:
            assert not reaches(alice, neighbour)


def test_what_is_left_of_a_removed_instance_is_removed_by_the_next(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    lost.mkdir()
    networks = open_own_networks(lost)
    held = networks.take()
    networks.close()
    lost.rmdir()
    other = tmp_path / "other"
    other.mkdir()
    open_own_networks(other).close()
    assert not claims.has_claim(instance_tag(lost))
    remove_own_networks(other)
    held.close()
    assert traces_on_host(instance_tag(lost)) == []


def test_rules_that_somebody_removed_are_applied_again(networks: OwnNetworks, program: firewall.Firewall) -> None:
    assert not networks.ensure_rules()
    program.remove(networks._claim.firewall)
    assert networks.ensure_rules()
    with contextlib.closing(networks.take()) as network, listening("0.0.0.0") as host:
        assert not reaches(network, (str(network.gateway), host[1]))


def test_networks_without_a_dev_server_are_removed_at_the_next_start(networks: OwnNetworks) -> None:
    with contextlib.closing(networks.take()) as used, contextlib.closing(networks.take()) as unused:
        networks.close()
        networks.remove_others([used.network_id.number])
        assert networks.plan.interface(used.network_id.number) in links.list_interfaces()
        assert networks.plan.interface(unused.network_id.number) not in links.list_interfaces()


def test_removing_a_network_twice_leaves_the_next_one_with_its_number(networks: OwnNetworks) -> None:
    with contextlib.closing(networks.take()) as network:
        networks.close()
        networks.remove(network.network_id)
    with contextlib.closing(networks._create()) as following:
        assert following.network_id.number == network.network_id.number
        networks.remove(network.network_id)
        assert networks.plan.interface(following.network_id.number) in links.list_interfaces()


def test_a_network_ends_with_its_last_user(networks: OwnNetworks) -> None:
    network = networks.take()
    interface = networks.plan.interface(network.network_id.number)
    assert interface in links.list_interfaces()
    network.close()
    eventually(lambda: interface not in links.list_interfaces(), within=60)
    networks.remove(network.network_id)


def test_a_firewall_of_others_that_drops_what_is_forwarded_is_passed(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path, tmp_path: Path
) -> None:
    """As with Docker, whose policy for forwarded packets is to drop them."""
    if set(FIREWALLS) != {"nft", "iptables"}:
        pytest.skip("needs nft and iptables")
    drop = ["-p", "tcp", "-o", f"gdprobe-{instance_tag(state_dir)}", "-j", "DROP"]
    monkeypatch.setattr(own_networks, "_probe_results", {})
    subprocess.run(["iptables", "-w", "-A", "FORWARD", *drop], check=True)
    try:
        open_own_networks(state_dir).close()
        remove_own_networks(state_dir)
    finally:
        subprocess.run(["iptables", "-w", "-D", "FORWARD", *drop], check=True)
    assert INTERFACE_PREFIX + instance_tag(state_dir) not in output("iptables", "-S")


def test_networks_that_have_worked_are_not_given_up_for_a_moments_failure(
    program: firewall.Firewall, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would be told that the next dev servers share the host's network."""

    def refuse(_: FirewallPlan) -> None:
        raise firewall.FirewallError(0, "the program does not answer")

    open_own_networks(state_dir).close()
    other = tmp_path / "other"
    other.mkdir()
    with monkeypatch.context() as busy:
        busy.setattr(program, "apply", refuse)
        with pytest.raises(Unavailable, match="does not answer"):
            open_own_networks(state_dir)
        with pytest.raises(NetworksUnavailable, match="does not answer"):
            open_own_networks(other)
    open_own_networks(state_dir).close()


def test_without_a_firewall_program_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_networks, "find_firewall", lambda: None)
    with pytest.raises(NetworksUnavailable, match="neither nft nor iptables"):
        open_own_networks(tmp_path)
    assert traces_on_host(instance_tag(tmp_path)) == []


def test_an_ordinary_user_has_nothing_to_remove_after_root_has_used_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_FOLDER", tmp_path / "claims")
    with claims.hold_claims_lock():
        pass
    os.seteuid(NOBODY)
    try:
        remove_own_networks(Path("/srv/theirs"))
    finally:
        os.seteuid(0)
