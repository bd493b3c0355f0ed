"""Resource limits of dev servers: their share of a node's CPUs, memory and processes, as cgroups.

cgroups of version 2 enforce the limits where this process may write them. Otherwise only the number of processes is
limited, and only where each user has their own uid. Nothing but limits depends on cgroups: stopping a dev server does
not need them.
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
_PROCESSES_PER_NODE = 32_768
_MIN_PROCESSES = 1_024
_MIN_CPUS = 1.0


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    cpus: float
    memory: int
    processes: int
    weight: int
    """Relative share of the CPUs under contention: 1 to 10000."""


def resource_limits(node: LocalNode, units: int) -> ResourceLimits:
    part = min(1.0, units / node.units)
    return ResourceLimits(
        cpus=max(_MIN_CPUS, node.cpus * part),
        memory=int(node.memory * part),
        processes=max(_MIN_PROCESSES, int(_PROCESSES_PER_NODE * part)),
        weight=max(1, round(1000 * part)),
    )


@dataclass(frozen=True, slots=True)
class CgroupLimiter:
    folder: Path | None
    """Our cgroup, below which each dev server gets one. None: cgroups cannot be used."""
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
        """Call it when the processes have ended; the kernel may need a moment to notice."""
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
    """Create our cgroup where this system permits it."""
    if not (os.geteuid() == 0 if is_root is None else is_root):
        return CgroupLimiter(None, "only root can set limits")
    if not sys.platform.startswith("linux"):
        return CgroupLimiter(None, "this system has no cgroups")
    if not (root / "cgroup.controllers").exists():
        return CgroupLimiter(None, "this system has no cgroups of version 2")
    missing = set(_CONTROLLERS) - set((root / "cgroup.controllers").read_text().split())
    if missing:
        return CgroupLimiter(None, f"the cgroup controllers {', '.join(sorted(missing))} are not available")
    ours = root / "gpu-dev"
    try:
        _enable_controllers(root)
        ours.mkdir(exist_ok=True)
        _enable_controllers(ours)
        # It may exist although no groups can be created in it.
        trial = ours / f"trial-{secrets.token_hex(4)}"
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        return CgroupLimiter(None, f"cannot write cgroups: {os.strerror(error.errno or 0)}")
    return CgroupLimiter(ours)


def _enable_controllers(group: Path) -> None:
    """Enable the controllers for the groups below this one."""
    control = group / "cgroup.subtree_control"
    enabled = set(control.read_text().split())
    missing = [name for name in _CONTROLLERS if name not in enabled]
    if missing:
        control.write_text(" ".join(f"+{name}" for name in missing))
