"""Network namespaces and the pairs of interfaces that join them to the host.

A namespace exists as long as a process in it or a descriptor of it. So whatever is not in use any more, the kernel
removes by itself, with both interfaces. Everything here blocks: call it in a thread.
"""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.network.plan import INSIDE_INTERFACE, INTERFACE_PREFIX, LinkAddresses

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_T = TypeVar("_T")
_USUAL_MTU = 1500
_LOOPBACK_INDEX = 1
_HOST_SETTINGS = (("ipv4", "forwarding", "1"), ("ipv4", "rp_filter", "1"), ("ipv6", "disable_ipv6", "1"))
_INSIDE_SETTINGS = (("ipv6", "disable_ipv6", "1"),)
_INNER_KINDS = ("veth", "tun", "dummy")
"""Of interfaces that lead to a container or a virtual machine."""
_ROUTER_SETTING = Path("/proc/sys/net/ipv4/ip_forward")
_PING_GROUPS = Path("/proc/sys/net/ipv4/ping_group_range")
_ALL_GROUPS = "0 2147483647"


@dataclass(frozen=True, slots=True)
class HostNetworks:
    """What the host's network has, apart from our own interfaces."""

    taken: tuple[IPv4Network, ...]
    addresses: frozenset[str]
    uplinks: tuple[str, ...]
    """Interfaces with a route, without the inner bridges."""
    inner_bridges: tuple[str, ...]
    """Those of containers and virtual machines on this machine: no port of theirs leads outside."""
    mtu: int
    has_ipv4_default: bool
    has_ipv6_default: bool


def create_namespace() -> int:
    """A descriptor of a new network namespace."""

    def create() -> int:
        linux.unshare(linux.CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _run_in_thread(create)


def join_to_host(namespace: int, interface: str, addresses: LinkAddresses, mtu: int) -> int:
    """Create a pair of interfaces, one here and one in the namespace. Returns the index of the one here.

    Raises FileExistsError for a taken name.
    """
    with _open_netlink() as host:
        _netlink(
            host.link,
            "add",
            ifname=interface,
            kind="veth",
            mtu=mtu,
            peer={"ifname": INSIDE_INTERFACE, "net_ns_fd": namespace, "mtu": mtu},
        )
        try:
            index = socket.if_nametoindex(interface)
            _write_settings(interface, _HOST_SETTINGS)
            _bring_up(host, interface, addresses.gateway, addresses.prefix)
            run_in_namespace(namespace, lambda: _configure_inside(addresses))
        except BaseException:
            _delete(host, interface)
            raise
    return index


def run_in_namespace(namespace: int, act: Callable[[], _T]) -> _T:
    """Call `act` in a thread that is in the namespace. Sockets that it creates belong there for good."""

    def enter() -> _T:
        linux.enter_namespace(namespace, linux.CLONE_NEWNET)
        return act()

    return _run_in_thread(enter)


def list_interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def has_interface(interface: str, index: int) -> bool:
    return (index, interface) in socket.if_nameindex()


def delete_interfaces(interfaces: list[str]) -> None:
    """Those that exist. The other end of each pair goes with it."""
    existing = set(list_interfaces())
    wanted = [name for name in interfaces if name in existing]
    if wanted:
        with _open_netlink() as host:
            for name in wanted:
                _delete(host, name)


def set_forwarding(interface: str, on: bool) -> None:
    _setting_path(interface, "ipv4", "forwarding").write_text("1" if on else "0")


def is_forwarding(interface: str) -> bool:
    try:
        return _setting_path(interface, "ipv4", "forwarding").read_text().strip() == "1"
    except OSError:
        return False


def is_router() -> bool:
    """Whether forwarding is on for the whole machine. We never change that: an administrator or Docker does."""
    try:
        return _ROUTER_SETTING.read_text().strip() == "1"
    except OSError:
        return False


def read_host_networks(own_prefix: str) -> HostNetworks:
    """`own_prefix`: begins the names of our own interfaces."""
    with _open_netlink() as host:
        links = {link["index"]: link for link in host.get_links()}
        names = {index: str(link.get_attr("IFLA_IFNAME")) for index, link in links.items()}
        routes = list(host.get_routes(family=socket.AF_INET))
        has_ipv6_default = any(
            route["dst_len"] == 0 and route["table"] == 254 for route in host.get_routes(family=socket.AF_INET6)
        )
        addresses = {str(entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")) for entry in host.get_addr()}
    foreign = [route for route in routes if not names.get(route.get_attr("RTA_OIF"), "").startswith(own_prefix)]
    defaults = [route for route in foreign if route["dst_len"] == 0 and route.get_attr("RTA_OIF") in links]
    mtus = [int(links[route.get_attr("RTA_OIF")].get_attr("IFLA_MTU") or _USUAL_MTU) for route in defaults]
    uplinks = {names[index] for route in foreign if (index := route.get_attr("RTA_OIF")) in names}
    inner = {names[index] for index in _inner_bridges(links) - {route.get_attr("RTA_OIF") for route in defaults}}
    uplinks -= {"lo", *inner}
    return HostNetworks(
        taken=tuple(_route_network(route) for route in foreign),
        addresses=frozenset(addresses),
        uplinks=tuple(sorted(name for name in uplinks if not name.startswith(INTERFACE_PREFIX))),
        inner_bridges=tuple(sorted(inner)),
        mtu=min(mtus, default=_USUAL_MTU),
        has_ipv4_default=bool(defaults),
        has_ipv6_default=has_ipv6_default,
    )


def _inner_bridges(links: dict[int, Any]) -> set[int]:
    kinds = {index: link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") for index, link in links.items()}
    with_port_outside = {
        link.get_attr("IFLA_MASTER") for index, link in links.items() if kinds[index] not in _INNER_KINDS
    }
    return {index for index, kind in kinds.items() if kind == "bridge"} - with_port_outside


def _route_network(route: Any) -> IPv4Network:
    return IPv4Network(f"{route.get_attr('RTA_DST') or '0.0.0.0'}/{route['dst_len']}", strict=False)


def _configure_inside(addresses: LinkAddresses) -> None:
    _write_settings(INSIDE_INTERFACE, _INSIDE_SETTINGS)
    with contextlib.suppress(OSError):  # `ping` is a convenience, and without this only root could use it
        _PING_GROUPS.write_text(_ALL_GROUPS)
    with _open_netlink() as inside:
        _netlink(inside.link, "set", index=_LOOPBACK_INDEX, state="up")
        _bring_up(inside, INSIDE_INTERFACE, addresses.inside, addresses.prefix)
        _netlink(inside.route, "add", dst="0.0.0.0/0", gateway=str(addresses.gateway))


def _bring_up(netlink: "IPRoute", interface: str, address: IPv4Address, prefix: int) -> None:
    index = socket.if_nametoindex(interface)
    _netlink(netlink.addr, "add", index=index, address=str(address), prefixlen=prefix)
    _netlink(netlink.link, "set", index=index, state="up")


def _delete(netlink: "IPRoute", interface: str) -> None:
    # ENODEV: the kernel removed it meanwhile, with its namespace.
    with contextlib.suppress(OSError):
        _netlink(netlink.link, "del", index=socket.if_nametoindex(interface))


def _netlink(request: Callable[..., Any], *words: str, **attributes: Any) -> None:
    from pyroute2 import NetlinkError

    try:
        request(*words, **attributes)
    except NetlinkError as error:
        what = " ".join((*words, str(attributes.get("ifname", ""))))
        raise OSError(error.code, f"cannot configure the network ({what}): {os.strerror(error.code)}") from error


@contextlib.contextmanager
def _open_netlink() -> "Iterator[IPRoute]":
    """A netlink socket of this thread's namespace. Use it in this thread only: elsewhere it would be another's."""
    # Imported only here, because it takes long and only processes that manage networks need it.
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as netlink:
            yield netlink
    except NetlinkError as error:
        raise OSError(error.code, f"cannot read the network's state: {os.strerror(error.code)}") from error


def _write_settings(interface: str, settings: tuple[tuple[str, str, str], ...]) -> None:
    for family, name, value in settings:
        path = _setting_path(interface, family, name)
        try:
            path.write_text(value)
        except OSError as error:
            if error.errno != errno.ENOENT or family == "ipv4":  # a kernel without IPv6
                raise OSError(error.errno, f"cannot set {path}: {error.strerror}") from error


def _setting_path(interface: str, family: str, name: str) -> Path:
    """Each thread finds the settings of its own network namespace there."""
    return Path("/proc/sys/net", family, "conf", interface, name)


def _run_in_thread(act: Callable[[], _T]) -> _T:
    """In a thread of its own, which ends afterwards: it may have changed its namespace."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, name="gpu-dev-network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
