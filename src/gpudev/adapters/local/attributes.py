"""Owner, rights, attributes and times of a file, from one open file to another: as much as we may keep."""

import contextlib
import errno
import os
import stat

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA, errno.ERANGE)
_HAS_EXTENDED_ATTRIBUTES = hasattr(os, "listxattr")


def copy_metadata(source: int | None, target: int, found: os.stat_result, mode: int, new_mode: int) -> list[str]:
    """The names of attributes that could not be kept. `found` and `mode`: what the source was; `new_mode`: what the
    target has now. Without a source, extended attributes are left out.

    The order matters: a new owner takes special rights and attributes away, and all of it changes times."""
    wanted = stat.S_IMODE(mode)
    if not _copy_owner(target, found):
        wanted &= ~(stat.S_ISUID | stat.S_ISGID)  # rights of a stranger are nobody's to hand out
    if wanted != new_mode:
        os.fchmod(target, wanted)
    lost = _copy_extended_attributes(source, target) if _HAS_EXTENDED_ATTRIBUTES and source is not None else []
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return lost


def _copy_owner(target: int, found: os.stat_result) -> bool:
    """Whether it has the source's owner and group now."""
    if (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid()):
        return True
    try:
        os.fchown(target, found.st_uid, found.st_gid)
    except PermissionError:
        with contextlib.suppress(PermissionError):
            os.fchown(target, -1, found.st_gid)
        return False
    return True


def _copy_extended_attributes(source: int, target: int) -> list[str]:
    lost = []
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return []
        raise
    for name in names:
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            lost.append(name)
    return lost
