"""The dev servers' own networks on this machine: opened once, ready ahead of need, removed with the last.

Everything here blocks: call it in threads.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, ip_network
from pathlib import Path

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.network import claims, links
from gpudev.adapters.local.network.claims import NetworkClaim
from gpudev.adapters.local.network.firewall import Firewall, find_firewall, installed_firewalls
from gpudev.adapters.local.network.plan import (
    INTERFACE_PREFIX,
    NameServers,
    NetworkId,
    NetworkPlan,
    choose_block,
    choose_name_servers,
    instance_tag,
    parse_name_servers,
)
from gpudev.adapters.local.network.probe import probe_networks
from gpudev.domain.addresses import METADATA_NETWORKS
from gpudev.domain.errors import Unavailable

_RESOLV_CONF = Path("/etc/resolv.conf")
_SYSTEMD_RESOLV_CONF = Path("/run/systemd/resolve/resolv.conf")
_READY_AHEAD = 2
_probe_results: dict[str, str | None] = {}
"""By firewall program. What the machine allows is the same for all instances of this process."""


class NetworksUnavailable(Exception):
    """Own networks do not work here. The text says why."""


@dataclass(frozen=True, slots=True)
class OwnNetwork:
    network_id: NetworkId
    namespace: int
    """A descriptor. The network ends with it, unless a process is in it by then."""
    gateway: IPv4Address
    resolv_conf: str | None
    """The text of /etc/resolv.conf inside. None: the host's."""

    def close(self) -> None:
        os.close(self.namespace)


class OwnNetworks:
    def __init__(self, claim: NetworkClaim, firewall: Firewall, mtu: int, name_servers: NameServers) -> None:
        self.plan: NetworkPlan = claim.networks
        self.name_servers = name_servers
        self._claim = claim
        self._firewall = firewall
        self._mtu = mtu
        self._lock = threading.Lock()
        self._ready: list[OwnNetwork] = []
        self._held: set[int] = set()
        """Numbers until they are removed: the kernel may remove an interface before we do, and its number must not have
        passed to another network by then."""
        self._closed = False
        self._background = ThreadPoolExecutor(1, "gpu-dev-networks")
        self.when_created: Callable[[OwnNetwork], None] = lambda _: None

    def take(self) -> OwnNetwork:
        """One that no dev server has. The caller closes it when the dev server is in it."""
        with self._lock:
            network = self._ready.pop() if self._ready else None
        if network is None:
            network = self._create()
        self.refill()
        return network

    def refill(self) -> None:
        """Prepare networks for the next dev servers, in the background."""
        with self._lock:
            if not self._closed:
                self._background.submit(self._fill)

    def hold(self, numbers: Iterable[int]) -> None:
        """These belong to dev servers that an earlier control plane started."""
        with self._lock:
            self._held.update(numbers)

    def remove(self, network_id: NetworkId) -> None:
        """Can run twice, also when another network has the number by then."""
        interface = self.plan.interface(network_id.number)
        is_there = links.has_interface(interface, network_id.index)
        if is_there:
            links.delete_interfaces([interface])
        with self._lock:
            if is_there or interface not in links.list_interfaces():
                self._held.discard(network_id.number)

    def remove_others(self, numbers: Iterable[int]) -> None:
        """Remove every network but those with these numbers. Only for a process that is alone, before it takes any."""
        kept = {self.plan.interface(number) for number in numbers}
        own = [name for name in links.list_interfaces() if name.startswith(self.plan.interface_prefix)]
        links.delete_interfaces([name for name in own if name not in kept])

    def ensure_rules(self) -> bool:
        """Apply the rules again if somebody has removed them, or if other interfaces lead outside by now. True: the
        rules were applied."""
        with claims.hold_claims_lock():
            host = links.read_host_networks(self.plan.interface_prefix)
            claim = _choose_interfaces(self._claim, host, claims.list_claims())
            own = (name for name in links.list_interfaces() if name.startswith(self.plan.interface_prefix))
            _ensure_forwarding((*claim.uplinks, *own))
            if claim == self._claim and self._firewall.is_applied(claim.firewall):
                return False
            claims.write_claim(claim)  # whoever removed the rules may have removed this, too
            self._firewall.apply(claim.firewall)
            self._claim = claim
        return True

    def close(self) -> None:
        """Networks of running dev servers remain."""
        with self._lock:
            self._closed = True
            unused, self._ready = self._ready, []
        self._background.shutdown(wait=True, cancel_futures=True)
        for network in (*unused, *self._ready):
            network.close()
        self._ready = []

    def _fill(self) -> None:
        while not self._closed:
            with self._lock:
                if len(self._ready) >= _READY_AHEAD:
                    return
            try:
                network = self._create()
            except (OSError, Unavailable):
                return  # the next `take` raises it
            with self._lock:
                self._ready.append(network)

    def _create(self) -> OwnNetwork:
        namespace = links.create_namespace()
        try:
            network_id = self._join(namespace)
        except BaseException:
            os.close(namespace)
            raise
        gateway = self.plan.addresses(network_id.number).gateway
        host_file = _read_text(_RESOLV_CONF)
        network = OwnNetwork(network_id, namespace, gateway, self.name_servers.file_inside(gateway, host_file))
        self.when_created(network)
        return network

    def _join(self, namespace: int) -> NetworkId:
        with self._lock:
            used = {self.plan.find_number(name) for name in links.list_interfaces()} | self._held
            number = next((number for number in range(self.plan.capacity) if number not in used), None)
            if number is None:
                raise Unavailable("all networks of this machine are in use")
            self._held.add(number)
        try:
            index = links.join_to_host(namespace, self.plan.interface(number), self.plan.addresses(number), self._mtu)
        except FileExistsError:
            return self._join(namespace)  # another process was faster
        except BaseException:
            with self._lock:
                self._held.discard(number)
            raise
        return NetworkId(number, index)


def open_own_networks(state_dir: Path, chosen_range: str = "") -> OwnNetworks:
    """Raises NetworksUnavailable; then everything is as it was before.

    Networks that were found to work are not probed again after a restart: a failure would take them from dev servers.
    What else fails then raises Unavailable, because it is expected to work again.
    """
    firewall = find_firewall()
    if not linux.IS_LINUX or os.geteuid() != 0:
        raise NetworksUnavailable("gpu-dev was not started by root")
    if firewall is None:
        raise NetworksUnavailable("neither nft nor iptables is installed")
    tag = instance_tag(state_dir)
    is_new = not claims.has_claim(tag)
    try:
        with claims.hold_claims_lock():
            _remove_lost_instances()
            host = links.read_host_networks(f"{INTERFACE_PREFIX}{tag}-")
            if host.has_ipv6_default and not host.has_ipv4_default:
                raise NetworksUnavailable("this machine reaches the outside by IPv6 only")
            name_servers = choose_name_servers(
                _read_text(_RESOLV_CONF), _read_text(_SYSTEMD_RESOLV_CONF), host.addresses
            )
            claim = _renew_claim(tag, state_dir, host, name_servers, chosen_range)
            claims.write_claim(claim)
            _ensure_forwarding(claim.uplinks)
            firewall.apply(claim.firewall)
        problem = None if claim.is_probed else _probe(firewall, claim, host.mtu)
    except ImportError as error:
        raise NetworksUnavailable(f"{error.name} is not installed") from error
    except OSError as error:
        problem = error.strerror or str(error)
    except BaseException:
        _undo_if_new(is_new, state_dir)
        raise
    if problem is not None:
        if (earlier := claims.list_claims().get(tag)) is not None and earlier.is_probed:
            raise Unavailable(f"the networks of dev servers cannot be used: {problem}")
        _undo_if_new(is_new, state_dir)
        raise NetworksUnavailable(problem)
    claim = replace(claim, is_probed=True)
    claims.write_claim(claim)
    return OwnNetworks(claim, firewall, host.mtu, name_servers)


def _undo_if_new(is_new: bool, state_dir: Path) -> None:
    """An earlier run's networks may be in use by dev servers."""
    if is_new:
        remove_own_networks(state_dir)


def remove_own_networks(state_dir: Path) -> None:
    """Everything that `open_own_networks` and the networks changed on the host. Can run twice."""
    tag = instance_tag(state_dir)
    if claims.has_claim(tag):
        with claims.hold_claims_lock():
            _remove_instance(tag)


def _renew_claim(
    tag: str, state_dir: Path, host: links.HostNetworks, name_servers: NameServers, chosen_range: str
) -> NetworkClaim:
    """The claim of an earlier run, as dev servers may still use its block; else a new one."""
    known = claims.list_claims()
    if tag in known:
        earlier = replace(known[tag], state_dir=str(state_dir), has_relay=bool(name_servers.relay_to))
        return _choose_interfaces(earlier, host, known)
    taken = [*host.taken, *(network for network in METADATA_NETWORKS if isinstance(network, IPv4Network))]
    for server in parse_name_servers(_read_text(_RESOLV_CONF)):
        with contextlib.suppress(ValueError):
            network = ip_network(server)
            taken += [network] if isinstance(network, IPv4Network) else []
    block = choose_block(tag, taken, IPv4Network(chosen_range) if chosen_range else None)
    if block is None:
        raise NetworksUnavailable("no private range of addresses is free (GPU_DEV_NETWORK_RANGE can name one)")
    claim = NetworkClaim(tag, str(state_dir), str(block), has_relay=bool(name_servers.relay_to))
    return _choose_interfaces(claim, host, known)


def _choose_interfaces(claim: NetworkClaim, host: links.HostNetworks, known: dict[str, NetworkClaim]) -> NetworkClaim:
    """The claim with the host's interfaces as they are now. Uplinks: where we, and nobody else, enable forwarding.

    Once somebody has enabled it for the whole machine, those from before are theirs: nothing is dropped there, and
    nothing restored.
    """
    is_router, existing = links.is_router(), links.list_interfaces()
    earlier = [other for other in (*known.values(), claim) if other.is_router == is_router]
    claimed = {name for other in earlier for name in other.uplinks}
    own = [name for name in claim.uplinks if name in claimed and name in existing]  # also while they have no route
    others = [name for name in host.uplinks if name in claimed or not links.is_forwarding(name)]
    uplinks = tuple(sorted({*own, *others}))
    return replace(claim, uplinks=uplinks, inner_bridges=host.inner_bridges, is_router=is_router)


def _ensure_forwarding(interfaces: Iterable[str]) -> None:
    for interface in interfaces:
        if not links.is_forwarding(interface):
            with contextlib.suppress(FileNotFoundError):  # the interface is gone
                links.set_forwarding(interface, on=True)


def _probe(firewall: Firewall, claim: NetworkClaim, mtu: int) -> str | None:
    problem = _probe_results.get(firewall.name, "")
    if problem is None:
        return None
    problem = probe_networks(claim.networks, mtu)
    if problem is not None and firewall.permit_forwarding(claim.firewall):
        problem = probe_networks(claim.networks, mtu)
    elif problem is None:
        _probe_results[firewall.name] = None
    return problem


def _remove_lost_instances() -> None:
    """Instances whose state folder was removed without `down`."""
    for tag, claim in claims.list_claims().items():
        if not Path(claim.state_dir).is_dir():
            _remove_instance(tag)


def _remove_instance(tag: str) -> None:
    known = claims.list_claims()
    claim = known.pop(tag, None)
    if claim is not None:
        prefix = claim.networks.interface_prefix
        links.delete_interfaces([name for name in links.list_interfaces() if name.startswith(prefix)])
        for firewall in installed_firewalls():
            firewall.remove(claim.firewall)
        still_claimed = {interface for other in known.values() for interface in other.uplinks}
        if claim.is_router or not links.is_router():  # else somebody else needs it by now
            _restore_forwarding(set(claim.uplinks) - still_claimed)
    claims.delete_claim(tag)


def _restore_forwarding(interfaces: Iterable[str]) -> None:
    for interface in interfaces:
        with contextlib.suppress(FileNotFoundError):  # the interface is gone
            links.set_forwarding(interface, on=False)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
