"""How far dev servers can be kept apart on this machine, and how to say so. The trying out happens in `probing`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FIRST_UID = 600_000
"""A user's own uid is this plus the user's number: stable, so that a disk's files keep their owner."""
_FIRST_UID_IN_CONTAINER = 30_000
"""Where the machine is itself a container with few uids (65,536 as a rule)."""
MAX_USERS = 30_000
UID_INSIDE = 1_000
"""What an ordinary user's own uid is called inside a user namespace."""
_UID_MAP = Path("/proc/self/uid_map")


class IsolationMode(StrEnum):
    ROOT = "root"
    """Started by root: own uid, own namespaces."""
    USER = "user"
    """Started by an ordinary user: the same view through a user namespace."""
    UIDS = "uids"
    """Started by root where namespaces are forbidden: own uid, ordinary folders."""
    PLAIN = "plain"
    """Ordinary folders and the uid of whoever started it."""

    @property
    def has_namespaces(self) -> bool:
        return self in (IsolationMode.ROOT, IsolationMode.USER)

    @property
    def has_own_uid(self) -> bool:
        return self in (IsolationMode.ROOT, IsolationMode.UIDS)


def candidate_modes(is_root: bool, is_linux: bool) -> tuple[IsolationMode, ...]:
    """The ways to try, best first; the last one always works."""
    if not is_linux:
        return (IsolationMode.PLAIN,)
    return (
        (IsolationMode.ROOT, IsolationMode.UIDS, IsolationMode.PLAIN)
        if is_root
        else (IsolationMode.USER, IsolationMode.PLAIN)
    )


@dataclass(frozen=True, slots=True)
class IsolationResult:
    """What the trying out found: the best way that works, and why the better ones do not."""

    mode: IsolationMode
    rejections: tuple[str, ...] = ()


def describe_isolation(result: IsolationResult, limits: str) -> str:
    """One honest sentence for people; `limits` (what `Limiter.in_words` says) is a part of it."""
    match result.mode:
        case IsolationMode.ROOT:
            kept = (
                "Each dev server runs under its user's own uid in its own mount, process, IPC and host name "
                "namespaces, with only its own GPUs' device files; the network is shared"
            )
        case IsolationMode.USER:
            kept = (
                "Each dev server has its own mount, process, IPC and host name namespaces, with only its own GPUs' "
                "device files, but all of them run under the uid of whoever started gpu-dev; the network is shared"
            )
        case IsolationMode.UIDS:
            kept = (
                "Dev servers of different users are kept apart by uid and file permissions only (this system does "
                "not allow namespaces): they see each other's processes and every GPU"
            )
        case IsolationMode.PLAIN:
            kept = (
                "Nothing keeps dev servers apart but separate folders: whoever logs in acts as the user who started "
                "gpu-dev and can reach that user's files, processes and every GPU"
            )
    why = f" ({'; '.join(result.rejections)})" if result.rejections else ""
    return f"{kept}{why}; {limits}." if limits else f"{kept}{why}."


def user_uid(user_id: int, first_uid: int) -> int:
    return first_uid + user_id


def first_user_uid() -> int:
    """Where users' own uids begin: high up, unless this machine is a container that does not have such uids."""
    try:
        lines = [[int(number) for number in line.split()] for line in _UID_MAP.read_text().splitlines()]
    except FileNotFoundError:
        return FIRST_UID
    last = FIRST_UID + MAX_USERS
    if any(start <= FIRST_UID and last < start + count for start, _, count in lines):
        return FIRST_UID
    return _FIRST_UID_IN_CONTAINER
