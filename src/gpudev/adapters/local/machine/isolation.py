"""Isolation modes of dev servers on this machine, and their description for people.

`isolation_probe` finds out which of them work.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FIRST_UID = 600_000
"""A user's own uid is this plus the user's number. It is stable, so that a disk's files keep their owner."""
_FIRST_UID_IN_CONTAINER = 30_000
"""Used where the machine is itself a container with few uids (usually 65,536)."""
MAX_USERS = 30_000
UID_INSIDE = 1_000
"""The uid that an ordinary user's own uid is mapped to inside a user namespace."""
_UID_MAP = Path("/proc/self/uid_map")


class IsolationMode(StrEnum):
    ROOT = "root"
    """Started by root: own uid, own namespaces."""
    USER = "user"
    """Started by an ordinary user: own namespaces within a user namespace."""
    UIDS = "uids"
    """Started by root where namespaces are forbidden: own uid, ordinary folders."""
    PLAIN = "plain"
    """Ordinary folders and the uid of the user who started gpu-dev."""

    @property
    def has_namespaces(self) -> bool:
        return self in (IsolationMode.ROOT, IsolationMode.USER)

    @property
    def has_own_uid(self) -> bool:
        return self in (IsolationMode.ROOT, IsolationMode.UIDS)


def candidate_modes(is_root: bool, is_linux: bool) -> tuple[IsolationMode, ...]:
    """The modes to try, best first. The last one always works."""
    if not is_linux:
        return (IsolationMode.PLAIN,)
    return (
        (IsolationMode.ROOT, IsolationMode.UIDS, IsolationMode.PLAIN)
        if is_root
        else (IsolationMode.USER, IsolationMode.PLAIN)
    )


@dataclass(frozen=True, slots=True)
class IsolationResult:
    """The best mode that works."""

    mode: IsolationMode
    rejections: tuple[str, ...] = ()
    """Why the better modes do not work."""


def describe_isolation(result: IsolationResult, limits: str, network: str = "the network is shared") -> str:
    """One sentence for people. `limits` (from `CgroupLimiter.describe`) and `network` are parts of it."""
    match result.mode:
        case IsolationMode.ROOT:
            isolation = (
                "Each dev server runs under its user's own uid in its own mount, process, IPC and host name "
                f"namespaces, with only its own GPUs' device files; {network}"
            )
        case IsolationMode.USER:
            isolation = (
                "Each dev server has its own mount, process, IPC and host name namespaces, with only its own GPUs' "
                "device files, but all of them run under the uid of the user who started gpu-dev; the network is shared"
            )
        case IsolationMode.UIDS:
            isolation = (
                "Dev servers of different users are isolated by uid and file permissions only (this system does "
                "not allow namespaces): they see each other's processes and every GPU"
            )
        case IsolationMode.PLAIN:
            isolation = (
                "Dev servers are isolated by separate folders only: everyone who logs in acts as the user who started "
                "gpu-dev and can reach that user's files, processes and every GPU"
            )
    why = f" ({'; '.join(result.rejections)})" if result.rejections else ""
    return f"{isolation}{why}; {limits}." if limits else f"{isolation}{why}."


def user_uid(user_id: int, first_uid: int) -> int:
    return first_uid + user_id


def first_user_uid() -> int:
    """Where users' own uids begin: at 600,000, unless this machine is a container without such high uids."""
    try:
        lines = [[int(number) for number in line.split()] for line in _UID_MAP.read_text().splitlines()]
    except FileNotFoundError:
        return FIRST_UID
    last = FIRST_UID + MAX_USERS
    if any(start <= FIRST_UID and last < start + count for start, _, count in lines):
        return FIRST_UID
    return _FIRST_UID_IN_CONTAINER
