"""A second real node beside the first, with a cable between the two: pods on one reach pods on the other."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from support.kubernetes.real_node import RealNode, _run

_PODS = "10.212.1.0/24"
_PODS_OF_THE_FIRST = "10.212.0.0/24"


class SecondNode(RealNode):
    def _cni(self) -> dict[str, object]:
        described = super()._cni()
        plugins = described["plugins"]
        assert isinstance(plugins, list)
        plugins[0]["ipam"]["ranges"] = [[{"subnet": _PODS}]]
        return described


@contextlib.contextmanager
def second_node(first: RealNode, folder: Path) -> Iterator[RealNode]:
    """It has the base images; whatever else is needed has to be imported."""
    with SecondNode(first.plane, folder, name="real-2") as second:
        _join(first, second)
        yield second


def _join(first: RealNode, second: RealNode) -> None:
    tag = f"{random.randrange(16**6):06x}"
    near, far = f"gj{tag}a", f"gj{tag}b"
    inside = [str(node._first) for node in (first, second)]
    _run("ip", "link", "add", near, "netns", inside[0], "type", "veth", "peer", "name", far, "netns", inside[1])
    _connect(first, near, "10.214.0.1/30", f"{_PODS} via 10.214.0.2")
    _connect(second, far, "10.214.0.2/30", f"{_PODS_OF_THE_FIRST} via 10.214.0.1")


def _connect(node: RealNode, link: str, address: str, route: str) -> None:
    for command in (f"ip addr add {address} dev {link}", f"ip link set {link} up", f"ip route add {route}"):
        _run(*node._inside(*command.split()))
