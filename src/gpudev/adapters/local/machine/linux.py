"""Linux system calls that Python 3.11 lacks. It decides nothing.

Importing it is safe on every system. Calling it raises OSError anywhere but on Linux.
"""

import ctypes
import errno
import os
import platform
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

IS_LINUX = sys.platform.startswith("linux")

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_RELATIME = 1 << 21
MNT_DETACH = 2

CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8
CAP_SYS_RESOURCE = 24

OOM_SCORE_OF_SYSTEM = -900
"""The kernel ends the control plane's processes last when memory runs out, and those of dev servers first."""
OOM_SCORE_OF_USERS = 500

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_KEYCTL_JOIN_SESSION_KEYRING = 1
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_NR_MOUNT_SETATTR = 442  # the same on every architecture
_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
_NR_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}

_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def unshare(flags: int) -> None:
    _check(_call().unshare(ctypes.c_int(flags)), "unshare", hex(flags))


def enter_namespace(descriptor: int, kind: int) -> None:
    """Move this thread into a namespace of another process."""
    _check(_call().setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns", hex(kind))


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    result = _call().mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _check(result, "mount", f"{kind or source or 'flags of'} on {target}")


def unmount(target: str, flags: int = 0) -> None:
    _check(_call().umount2(_bytes(target), ctypes.c_int(flags)), "umount", target)


def bind_mount(source: str, target: str, flags: int = 0) -> None:
    """Bind `source` and all mounts below it to `target`. `flags` (MS_RDONLY, MS_NOSUID …) apply to all of them.

    The mounts below are always included: in a user namespace the kernel refuses to leave them out.
    """
    mount(source, target, None, MS_BIND | MS_REC)
    if flags:
        add_mount_flags(target, flags)


def add_mount_flags(target: str, flags: int) -> None:
    """Add flags to a mount and to all mounts below it. Flags that are set remain set."""
    # The bits of MOUNT_ATTR_{RDONLY,NOSUID,NODEV,NOEXEC} are those of the MS_ flags.
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    result = _call().syscall(
        ctypes.c_long(_NR_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        _bytes(target),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    if result == 0:
        return
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        _check(result, "mount_setattr", target)
    # Linux before 5.12, or a sandbox that does not know the call: set the flags mount by mount.
    for point in mounts_below(target):
        mount(None, point, None, MS_BIND | MS_REMOUNT | flags | _present_flags(point))


def mounts_below(target: str) -> list[str]:
    """The mount at `target` and those below it, as this process sees them."""
    top = os.path.realpath(target)
    points = [_unescape(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point == top or point.startswith(top.rstrip("/") + "/")]


def pivot_root_here() -> None:
    """Make the working folder (a mount) the root, and unmount the old root."""
    machine = platform.machine()
    number = _NR_PIVOT_ROOT.get(machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"no number of pivot_root known for {machine}")
    _check(_call().syscall(ctypes.c_long(number), b".", b"."), "pivot_root", ".")
    # Both roots are now mounted at the same place, the old one on top.
    unmount(".", MNT_DETACH)
    os.chdir("/")


def set_hostname(name: str) -> None:
    encoded = name.encode()
    _check(_call().sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname", name)


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, instead of the system's first process."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, or now if it has ended. Changing uids undoes it."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show."""
    _call().prctl(ctypes.c_ulong(_PR_SET_NAME), _bytes(name[:15]), *(ctypes.c_ulong(0),) * 3)


def forbid_new_privileges() -> None:
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(dumpable: bool) -> None:
    """Processes of the same uid cannot read the memory of a process that is not dumpable."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(dumpable))


def set_oom_score_adj(value: int) -> bool:
    """False: not allowed. A value set with CAP_SYS_RESOURCE is also the lowest that its children can choose."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(value))
    except OSError:
        return False
    return True


def empty_bounding_set() -> None:
    """Programs that are run from now on can never gain a capability."""
    capability = 0
    while _call().prctl(*_longs(_PR_CAPBSET_DROP, capability)) == 0:
        capability += 1
    # EINVAL: past the last capability that the kernel knows. EPERM: we may not change the set, which is harmless in
    # a process that drops its capabilities and may gain none.
    if ctypes.get_errno() not in (errno.EINVAL, errno.EPERM):
        _check(-1, "PR_CAPBSET_DROP", str(capability))


def keep_capabilities(kept: Iterable[int] = ()) -> None:
    """Drop all capabilities but these (all must be below 32), as far as it has them. Children inherit none."""
    _call().prctl(*_longs(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL))
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    present = (ctypes.c_uint32 * 6)()
    _check(_call().capget(header, present), "capget", "self")
    mask = sum(1 << capability for capability in kept) & present[1]
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _check(_call().capset(header, data), "capset", hex(mask))


def leave_session_keyring() -> None:
    """Replace the inherited keyring, which may hold the owner's keys, by an empty one.

    Best effort: many containers forbid the call, and they forbid the use of keyrings too.
    """
    number = _NR_KEYCTL.get(platform.machine())
    if number is not None:
        _call().syscall(ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)


def _prctl(name: str, option: int, value: int) -> None:
    _check(_call().prctl(*_longs(option, value)), name, str(value))


def _longs(option: int, value: int) -> tuple[ctypes.c_ulong, ...]:
    return tuple(ctypes.c_ulong(number) for number in (option, value, 0, 0, 0))


def _present_flags(point: str) -> int:
    """The current flags of a mount. In a user namespace the kernel rejects a remount that drops one."""
    current = os.statvfs(point).f_flag
    pairs = (
        (os.ST_RDONLY, MS_RDONLY),
        (os.ST_NOSUID, MS_NOSUID),
        (os.ST_NODEV, MS_NODEV),
        (os.ST_NOEXEC, MS_NOEXEC),
        (os.ST_NOATIME, MS_NOATIME),
        (os.ST_NODIRATIME, MS_NODIRATIME),
        (os.ST_RELATIME, MS_RELATIME),
    )
    return sum(mount_flag for statvfs_flag, mount_flag in pairs if current & statvfs_flag)


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal escapes."""
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escaped, plain)
    return field


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _call() -> ctypes.CDLL:
    if _libc is None:
        raise OSError(errno.ENOSYS, "this system is not Linux")
    return _libc


def _check(result: int, call: str, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call} ({what}): {os.strerror(number)}")
