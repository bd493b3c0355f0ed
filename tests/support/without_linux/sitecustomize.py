"""Makes Python believe that this is macOS: with this folder on PYTHONPATH, the names that only Linux has are gone
before any module of ours is loaded, and whoever asks for the system's name hears "darwin".

It cannot show how macOS behaves, only that nothing counts on what macOS does not have. Whoever reads /proc without
asking first still gets an answer here.
"""

import contextlib
import ctypes
import importlib
import os
import sys
import sysconfig
import types

# In this order: whoever is loaded later looks once which of the names before are there.
_ONLY_LINUX = {
    "os": (
        "copy_file_range eventfd eventfd_read eventfd_write fdatasync getrandom getresgid getresuid getxattr listxattr "
        "memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate removexattr sched_getaffinity sched_setaffinity "
        "setns setresgid setresuid setxattr splice unshare O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE "
        "timerfd_create P_PIDFD"
    ),
    "select": "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLET EPOLLONESHOT EPOLL_CLOEXEC POLLRDHUP",
    "signal": "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPOLL SIGPWR SIGSTKFLT SIGCLD",
    "fcntl": "F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_SETSIG F_NOTIFY F_OFD_SETLK",
    "resource": "prlimit RLIMIT_OFILE RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE",
    "socket": (  # AF_PACKET stays: Linux's psutil needs it
        "AF_NETLINK AF_VSOCK MSG_CMSG_CLOEXEC MSG_MORE SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_MARK SO_PEERCRED "
        "TCP_CORK TCP_DEFER_ACCEPT TCP_KEEPIDLE TCP_QUICKACK TCP_USER_TIMEOUT"
    ),
}
_ONLY_LINUX_CALLS = {"capset", "mount", "prctl", "syncfs", "syscall", "umount2", "unshare"}


class _Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> object:
        if name == "sysctlbyname":  # what only macOS has: it knows nothing
            return lambda *_: -1
        if name in _ONLY_LINUX_CALLS:
            raise AttributeError(name)
        return super().__getattr__(name)


def _pretend() -> None:
    for module, names in _ONLY_LINUX.items():
        found = importlib.import_module(module)
        for name in names.split():
            if hasattr(found, name):
                delattr(found, name)
    os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined] # Python 3.13 counts by what was taken away
    ctypes.CDLL = _Library  # type: ignore[misc]
    proxies = types.ModuleType("_scproxy")  # macOS's settings, which Python asks there for proxies
    proxies.__dict__.update(_get_proxy_settings=dict, _get_proxies=dict)
    sys.modules["_scproxy"] = proxies
    importlib.import_module("ctypes.util")  # Debian's Python leaves out its part for macOS
    with contextlib.suppress(ImportError):  # made for the system it was installed on, and asks for its name
        importlib.import_module("psutil")
    sysconfig.get_config_vars()  # from a file that is named after the system
    sys.platform = "darwin"


_pretend()
