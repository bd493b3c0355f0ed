"""How much of the machine a dev server may use: its part of the node's CPUs, memory and processes, by its units.

Limits hold through cgroups of version 2 where this process may write them; else only the number of processes is
limited, where each user has an own uid. Limits are all cgroups serve for here: ending a dev server does not need them.
"""

import errno
import os
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.nodes import LocalNode

CGROUP_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpu", "memory", "pids")
_PERIOD_US = 100_000
_PROCESSES_OF_A_NODE = 32_768
_LEAST_PROCESSES = 1_024
_LEAST_CPUS = 1.0


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    cpus: float
    memory: int
    processes: int
    weight: int
    """Who gets how much of a CPU when all want it: 1 to 10000."""


def resource_limits(node: LocalNode, units: int) -> ResourceLimits:
    part = min(1.0, units / node.units)
    return ResourceLimits(
        cpus=max(_LEAST_CPUS, node.cpus * part),
        memory=int(node.memory * part),
        processes=max(_LEAST_PROCESSES, int(_PROCESSES_OF_A_NODE * part)),
        weight=max(1, round(1000 * part)),
    )


@dataclass(frozen=True, slots=True)
class CgroupLimiter:
    """`folder`: our cgroup, below which each dev server gets one; None: limits by cgroup are not to be had."""

    folder: Path | None
    unavailable_reason: str = ""

    def describe(self, mode: IsolationMode) -> str:
        if self.folder is not None:
            return "CPU, memory and process limits hold in proportion to the GPUs"
        if mode.has_own_uid:
            return f"only the number of processes is limited ({self.unavailable_reason})"
        return f"CPU, memory and processes are not limited ({self.unavailable_reason})"

    def ensure_group(self, name: str, share: ResourceLimits) -> Path | None:
        if self.folder is None:
            return None
        group = self.folder / name
        group.mkdir(exist_ok=True)
        (group / "cpu.max").write_text(f"{int(share.cpus * _PERIOD_US)} {_PERIOD_US}")
        (group / "cpu.weight").write_text(str(share.weight))
        (group / "memory.max").write_text(str(share.memory))
        (group / "pids.max").write_text(str(share.processes))
        return group

    def remove_group(self, name: str) -> None:
        """Its processes have ended; the kernel may need a moment to notice."""
        if self.folder is None:
            return
        for _ in range(50):
            try:
                (self.folder / name).rmdir()
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(0.01)


def find_cgroup_limiter(root: Path = CGROUP_ROOT, *, is_root: bool | None = None) -> CgroupLimiter:
    """Our cgroup, made ready, where this system lets us."""
    if not (os.geteuid() == 0 if is_root is None else is_root):
        return CgroupLimiter(None, "only root can set limits")
    if not sys.platform.startswith("linux"):
        return CgroupLimiter(None, "this system has no cgroups")
    if not (root / "cgroup.controllers").exists():
        return CgroupLimiter(None, "this system's cgroups are of version 1, or there are none")
    missing = set(_CONTROLLERS) - set((root / "cgroup.controllers").read_text().split())
    if missing:
        return CgroupLimiter(None, f"the cgroup controllers {', '.join(sorted(missing))} are not available")
    ours = root / "gpu-dev"
    try:
        _enable_controllers(root)
        ours.mkdir(exist_ok=True)
        _enable_controllers(ours)
        # That it is there does not say that groups can be made in it.
        trial = ours / f"trial-{secrets.token_hex(4)}"
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        return CgroupLimiter(None, f"cgroups cannot be written here: {os.strerror(error.errno or 0)}")
    return CgroupLimiter(ours)


def _enable_controllers(group: Path) -> None:
    """Let the groups below have the controllers."""
    control = group / "cgroup.subtree_control"
    have = set(control.read_text().split())
    lacking = [name for name in _CONTROLLERS if name not in have]
    if lacking:
        control.write_text(" ".join(f"+{name}" for name in lacking))
