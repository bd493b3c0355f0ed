"""Resource limits of dev servers: their share of a node's CPUs, memory and processes, as cgroups.

cgroups enforce the limits where this process may write them: one group for all of them with version 2, one for each
controller with version 1. Otherwise only the number of processes is limited, and only where each user has their own
uid. Nothing but limits depends on cgroups: stopping a dev server does not need them.
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
_NAMES = {"cpu": "CPU", "memory": "memory", "pids": "processes"}
_OWN_GROUP = "gpu-dev"
_PERIOD_US = 100_000
_MIN_CPU_SHARES = 2
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
class CgroupFolder:
    """Our cgroup in one hierarchy, below which each dev server gets one."""

    path: Path
    version: int
    controllers: tuple[str, ...]

    def write_limits(self, group: Path, limits: ResourceLimits) -> None:
        files = _version_2_files(limits) if self.version == 2 else _version_1_files(limits)
        for name, value in files:
            if name.partition(".")[0] in self.controllers:
                (group / name).write_text(value)


def _version_2_files(limits: ResourceLimits) -> tuple[tuple[str, str], ...]:
    return (
        ("cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"),
        ("cpu.weight", str(limits.weight)),
        ("memory.max", str(limits.memory)),
        ("pids.max", str(limits.processes)),
    )


def _version_1_files(limits: ResourceLimits) -> tuple[tuple[str, str], ...]:
    return (
        ("cpu.cfs_period_us", str(_PERIOD_US)),
        ("cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US))),
        ("cpu.shares", str(max(_MIN_CPU_SHARES, limits.weight))),
        ("memory.limit_in_bytes", str(limits.memory)),
        ("pids.max", str(limits.processes)),
    )


@dataclass(frozen=True, slots=True)
class CgroupLimiter:
    folders: tuple[CgroupFolder, ...] = ()
    """Empty: cgroups cannot be used."""
    unavailable_reason: str = ""

    def limits(self, controller: str) -> bool:
        return any(controller in folder.controllers for folder in self.folders)

    def describe(self, mode: IsolationMode) -> str:
        limited = [name for controller, name in _NAMES.items() if self.limits(controller)]
        if len(limited) == len(_NAMES):
            return "CPU, memory and process limits hold in proportion to the GPUs"
        if limited:
            return f"limits on {' and '.join(limited)} hold in proportion to the GPUs ({self.unavailable_reason})"
        if mode.has_own_uid:
            return f"only the number of processes is limited ({self.unavailable_reason})"
        return f"CPU, memory and processes are not limited ({self.unavailable_reason})"

    def ensure_groups(self, name: str, limits: ResourceLimits) -> tuple[Path, ...]:
        groups = []
        for folder in self.folders:
            group = folder.path / name
            group.mkdir(exist_ok=True)
            folder.write_limits(group, limits)
            groups.append(group)
        return tuple(groups)

    def remove_groups(self, name: str) -> None:
        """Call it when the processes have ended; the kernel may need a moment to notice."""
        for folder in self.folders:
            _remove_group(folder.path / name)


def _remove_group(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.01)


def find_cgroup_limiter(root: Path = CGROUP_ROOT, *, is_root: bool | None = None) -> CgroupLimiter:
    """Create our cgroups where this system permits it."""
    if not (os.geteuid() == 0 if is_root is None else is_root):
        return CgroupLimiter(unavailable_reason="only root can set limits")
    if not sys.platform.startswith("linux"):
        return CgroupLimiter(unavailable_reason="this system has no cgroups")
    try:
        if (root / "cgroup.controllers").exists():
            return _find_version_2(root)
        return _find_version_1(root)
    except OSError as error:
        return CgroupLimiter(unavailable_reason=f"cannot write cgroups: {os.strerror(error.errno or 0)}")


def _find_version_2(root: Path) -> CgroupLimiter:
    missing = set(_CONTROLLERS) - set((root / "cgroup.controllers").read_text().split())
    if missing:
        reason = f"the cgroup controllers {', '.join(sorted(missing))} are not available"
        return CgroupLimiter(unavailable_reason=reason)
    ours = root / _OWN_GROUP
    _enable_controllers(root)
    ours.mkdir(exist_ok=True)
    _enable_controllers(ours)
    _try_group(ours)
    return CgroupLimiter((CgroupFolder(ours, 2, _CONTROLLERS),))


def _find_version_1(root: Path) -> CgroupLimiter:
    """Each controller has a hierarchy of its own. Only those with a memory limit are worth it."""
    if not (root / "memory" / "memory.limit_in_bytes").exists():
        reason = "this system has no cgroups of version 2, and none of version 1 for memory"
        return CgroupLimiter(unavailable_reason=reason)
    available = [name for name in _CONTROLLERS if (root / name / "cgroup.procs").exists()]
    folders = []
    for controller in available:
        ours = root / controller / _OWN_GROUP
        ours.mkdir(exist_ok=True)
        _try_group(ours)
        folders.append(CgroupFolder(ours, 1, (controller,)))
    missing = ", ".join(sorted(set(_CONTROLLERS) - set(available)))
    return CgroupLimiter(tuple(folders), f"the cgroup controllers {missing} are not available" if missing else "")


def _try_group(ours: Path) -> None:
    """Our group may exist although no groups can be created in it. Raises OSError then."""
    trial = ours / f"trial-{secrets.token_hex(4)}"
    trial.mkdir()
    trial.rmdir()


def _enable_controllers(group: Path) -> None:
    """Enable the controllers for the groups below this one."""
    control = group / "cgroup.subtree_control"
    enabled = set(control.read_text().split())
    missing = [name for name in _CONTROLLERS if name not in enabled]
    if missing:
        control.write_text(" ".join(f"+{name}" for name in missing))
