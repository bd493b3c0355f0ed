"""What each instance on this machine has changed in the host's network, so that the last one restores it.

The files are below /run: they end with the machine's uptime, as do the changes. Hold the lock to read or write them.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path

from gpudev.adapters.atomic_write import write_atomically
from gpudev.adapters.local.network.plan import NetworkPlan
from gpudev.adapters.local.network.rules import FirewallPlan

_FOLDER = Path("/run/gpu-dev-networks")


@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """The changes of one instance."""

    tag: str
    state_dir: str
    block: str
    uplinks: tuple[str, ...] = ()
    """Interfaces that did not forward before the first instance came."""
    is_router: bool = False
    """Whether forwarding was on for the whole machine when the uplinks were chosen."""
    inner_bridges: tuple[str, ...] = ()
    has_relay: bool = False
    is_probed: bool = False
    """Whether the networks were found to work."""

    @property
    def networks(self) -> NetworkPlan:
        return NetworkPlan(self.tag, IPv4Network(self.block))

    @property
    def firewall(self) -> FirewallPlan:
        return FirewallPlan(self.networks, self.uplinks, self.inner_bridges, self.has_relay)


@contextlib.contextmanager
def hold_claims_lock() -> Iterator[None]:
    _FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_FOLDER / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def has_claim(tag: str) -> bool:
    """Also without the lock, and for ordinary users: they may not look, and have none."""
    try:
        return (_FOLDER / f"{tag}.json").exists()
    except PermissionError:
        return False


def list_claims() -> dict[str, NetworkClaim]:
    """By tag. A damaged file is left out."""
    found = {}
    for path in _FOLDER.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            data = json.loads(path.read_text())
            lists = {name: tuple(data.get(name, ())) for name in ("uplinks", "inner_bridges")}
            claim = NetworkClaim(**{**data, **lists})
            IPv4Network(claim.block)
            found[path.stem] = claim
    return found


def write_claim(claim: NetworkClaim) -> None:
    write_atomically(_FOLDER / f"{claim.tag}.json", json.dumps(asdict(claim)))


def delete_claim(tag: str) -> None:
    (_FOLDER / f"{tag}.json").unlink(missing_ok=True)
