"""File system calls that Python lacks: openat2, reflinks, holes, syncfs. It decides nothing.

Where the kernel lacks a call, the nearest equally safe call is used.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import sys
from pathlib import Path

_FICLONE = 0x40049409
_NR_OPENAT2 = 437  # the same on every architecture
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_SYMLINKS = 0x04
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HOW = (ctypes.c_uint64 * 3)(_FOLDER, 0, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS)
_CANNOT_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EPERM, errno.ETXTBSY)
_KERNEL_COPY_UNSUPPORTED = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)
_HOLES_UNSUPPORTED = (errno.EINVAL, errno.ENOTTY, errno.ENOTSUP)  # Linux; macOS
_CHUNK = 16 * 1024 * 1024
"""At most this many bytes are copied between two checks whether to stop."""
_BUFFER = 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None
_has_openat2 = _libc is not None


def open_folder(name: str, folder: int | None) -> int:
    """Open a folder by its name in an open folder.

    It follows no link (ELOOP, ENOTDIR) and enters no mount (EXDEV): a user may have put either there a moment ago.
    """
    global _has_openat2  # noqa: PLW0603
    if folder is None:
        return os.open(name, _FOLDER)
    if _has_openat2 and _libc is not None:
        fd: int = _libc.syscall(_NR_OPENAT2, folder, os.fsencode(name), ctypes.byref(_HOW), ctypes.sizeof(_HOW))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EPERM):
            raise OSError(number, os.strerror(number), name)
        _has_openat2 = False  # an old kernel, or a sandbox without the call
    return _open_folder_on_device(name, folder)


def _open_folder_on_device(name: str, folder: int) -> int:
    fd = os.open(name, _FOLDER, dir_fd=folder)
    if os.fstat(fd).st_dev != os.fstat(folder).st_dev:
        os.close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return fd


def clone_file(source: int, target: int) -> bool:
    """Make both files share their blocks until one of them is written (a reflink). False: not possible here."""
    if _libc is None:
        return False
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _CANNOT_CLONE:
            return False
        raise
    return True


def copy_bytes(source: int, target: int, start: int, end: int) -> int:
    """Copy some bytes from `start` on, at most up to `end`. Returns how many. 0: the source ends there."""
    count = min(end - start, _CHUNK)
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, start, start)
        except OSError as error:
            if error.errno not in _KERNEL_COPY_UNSUPPORTED:
                raise
    data = os.pread(source, min(count, _BUFFER), start)
    done = 0
    while done < len(data):
        done += os.pwrite(target, data[done:], start + done)
    return done


def next_data(fd: int, start: int, end: int) -> tuple[int, int] | None:
    """The first range of data (not a hole) at or after `start`. None: only holes up to the end."""
    try:
        first = os.lseek(fd, start, os.SEEK_DATA)
        return first, min(os.lseek(fd, first, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno in _HOLES_UNSUPPORTED:
            return start, end
        raise


def sync_filesystem(fd: int) -> None:
    """Flush the file system of `fd` to its device.

    One call for a whole tree: syncing a thousand files one by one would wait for the device a thousand times.
    """
    if _libc is None:
        os.sync()
    elif _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"syncfs: {os.strerror(number)}")


def sync_folder(path: Path) -> None:
    """Flush the names in a folder, so that they survive a loss of power."""
    fd = os.open(path, _FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def filesystem_type(fd: int) -> str | None:
    """The file system's type (ext4, btrfs, …). None: unknown."""
    device = os.fstat(fd).st_dev
    device_number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            own, _, rest = line.partition(" - ")
            if own.split()[2] == device_number:
                return rest.split()[0]
    return None
