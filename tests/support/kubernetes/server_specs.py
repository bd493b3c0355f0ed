"""Specifications of dev servers for the tests of this adapter."""

from typing import Any

from gpudev.domain.cluster import NodeShare
from gpudev.domain.ids import UserId, new_reservation_id, pod_name
from gpudev.ports.cluster import ServerSpec

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJz3kp1hWd7FSGP8wVPhlm5BkZdS0Dkt3Xv1H6Eo4bYs ada@home"


def server_spec(*nodes: str, units: int = 1, **changes: Any) -> ServerSpec:
    """A dev server with this many GPUs on each of these nodes."""
    rid = new_reservation_id()
    shares = tuple(NodeShare(rank, node, units) for rank, node in enumerate(nodes or ("node-a",)))
    values: dict[str, Any] = {
        "reservation_id": rid,
        "pod_name": pod_name(rid),
        "user_id": UserId(7),
        "username": "ada",
        "gpu_type": "h100",
        "gpu_count": units * len(shares),
        "shares": shares,
        "ssh_public_keys": (PUBLIC_KEY,),
        "disk_id": None,
        "disk_name": None,
    }
    return ServerSpec(**values | changes)
