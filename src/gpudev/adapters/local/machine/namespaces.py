"""Root file system and namespaces of a dev server: a read-only system, own folders, few devices.

It runs in the process that becomes the dev server's first one, before any user code. It decides what is visible
inside. The launch spec says which folders and devices the dev server gets.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from gpudev.adapters.local.machine import linux, seccomp
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.launch_spec import LOGIN, SHELL, LaunchSpec, runtime_dir

_SYSTEM_TREES = ("usr", "opt", "etc", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "gnu")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_RESOLV_CONF = "/etc/resolv.conf"
_CGROUPS = "/sys/fs/cgroup"
_READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_OWN = linux.MS_NOSUID | linux.MS_NODEV
_SHM_PART = 0.5
_RUNTIME_PART = 0.1
"""Of the memory, as Linux and systemd have it; here of the dev server's share."""
_MIN_TMPFS_BYTES = 16 * 1024 * 1024
_BYTES_PER_INODE = 16 * 1024


def enter_user_namespace(uid_inside: int) -> None:
    """Become the only user of a new user namespace: with all capabilities inside, none outside."""
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid_inside} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{uid_inside} {gid} 1")


def unshare_all() -> None:
    """Get own mounts, IPC and host name. The next child becomes the first process of an own pid namespace."""
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS)


def build_root(launch: LaunchSpec, member: Path) -> None:
    """Replace this process's root by the dev server's own."""
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)  # no mount may propagate to the host
    root = member / "root"
    linux.mount("tmpfs", str(root), "tmpfs", _OWN, "mode=755,size=16m")
    _show_system(root)
    _write_etc_files(root, launch)
    _show_resolv_conf(root, launch.resolv_conf)
    _show_own_folders(root, launch, member)
    _mount_kernel_views(root, launch.has_own_network)
    _make_devices(root, launch)
    _hide(root, launch.hidden)
    # Only the root itself: mounts in it keep their own flags.
    linux.mount(None, str(root), None, linux.MS_REMOUNT | linux.MS_BIND | _READ_ONLY)
    os.chdir(root)
    linux.pivot_root_here()
    linux.set_hostname(launch.hostname)


def drop_privileges(launch: LaunchSpec) -> None:
    """Become the dev server's user, irrevocably. Every process that will run user code calls it."""
    if launch.mode.has_own_uid:
        linux.set_oom_score_adj(linux.OOM_SCORE_OF_USERS)
    if launch.mode is not IsolationMode.PLAIN:
        linux.leave_session_keyring()
    if launch.mode.has_own_uid:
        linux.empty_bounding_set()
        os.setgroups(_device_groups(launch.devices))
        os.setresgid(launch.uid, launch.uid, launch.uid)
        os.setresuid(launch.uid, launch.uid, launch.uid)
    elif launch.mode is IsolationMode.USER:
        linux.empty_bounding_set()
        linux.keep_capabilities()
    if linux.IS_LINUX:
        linux.forbid_new_privileges()
        if not launch.has_user_namespaces:
            seccomp.forbid_user_namespaces()
        # It still has the host key and descriptors of reports, which the programs of its user must not get at. They
        # themselves become dumpable again when they are executed.
        linux.set_dumpable(False)


def _show_system(root: Path) -> None:
    for name in _SYSTEM_TREES:
        outside, inside = Path("/", name), root / name
        if outside.is_symlink():
            inside.symlink_to(outside.readlink())
        elif outside.is_dir():
            inside.mkdir()
            linux.bind_mount(str(outside), str(inside), _READ_ONLY)


def _show_resolv_conf(root: Path, text: str | None) -> None:
    """It is often a link into /run, which is otherwise not shown. `text` None: the host's own file."""
    target = Path(os.path.realpath(_RESOLV_CONF))
    inside = root / target.relative_to("/")
    if not target.is_file() or (text is None and inside.exists()):
        return
    source = target
    if text is not None:
        source = root / "run" / "gpu-dev-etc" / "resolv.conf"
        source.write_text(text)
    if not inside.exists():
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.touch()
    linux.bind_mount(str(source), str(inside), _READ_ONLY)


def _write_etc_files(root: Path, launch: LaunchSpec) -> None:
    """Mount own files of users and host names over the host's."""
    names = " ".join(launch.hostnames)
    files = {
        "passwd": (
            "root:x:0:0:root:/root:/usr/sbin/nologin\n"
            f"{LOGIN}:x:{launch.uid}:{launch.uid}:{LOGIN}:/home/{LOGIN}:{SHELL}\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": f"root:x:0:\n{LOGIN}:x:{launch.uid}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost\n{launch.address} {names}\n::1 localhost ip6-localhost ip6-loopback\n",
        "hostname": f"{launch.hostname}\n",
    }
    own = root / "run" / "gpu-dev-etc"
    own.mkdir(parents=True)
    for name, text in files.items():
        source, target = own / name, root / "etc" / name
        # Mounting on a link would follow it out of the new root. The host's file remains there instead.
        if target.is_file() and not target.is_symlink():
            source.write_text(text)
            linux.bind_mount(str(source), str(target), _READ_ONLY)


def _show_own_folders(root: Path, launch: LaunchSpec, member: Path) -> None:
    folders = (
        (launch.home, f"home/{LOGIN}", _OWN),
        (launch.workspace, "workspace", _OWN),
        (str(member / "tmp"), "tmp", _OWN),
        (str(member / "var-tmp"), "var/tmp", _OWN),
        (launch.run, "run/gpu-dev", _READ_ONLY),
    )
    for outside, name, flags in folders:
        inside = root / name
        inside.mkdir(parents=True, exist_ok=True)
        linux.bind_mount(outside, str(inside), flags)
    for name in ("root", "mnt", "srv", "var/lib", "var/log", "var/cache"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "var/run").symlink_to("/run")
    runtime = root / runtime_dir(launch.uid).lstrip("/")
    runtime.mkdir(parents=True)
    linux.mount(
        "tmpfs",
        str(runtime),
        "tmpfs",
        _OWN,
        f"mode=700,uid={launch.uid},gid={launch.uid}{_tmpfs_bound(launch.memory, _RUNTIME_PART)}",
    )


def _mount_kernel_views(root: Path, has_own_network: bool) -> None:
    proc, sys = root / "proc", root / "sys"
    proc.mkdir()
    linux.mount("proc", str(proc), "proc", _OWN | linux.MS_NOEXEC)
    sys.mkdir()
    if not has_own_network:
        linux.bind_mount("/sys", str(sys), _READ_ONLY | linux.MS_NOEXEC)
        return
    # The host's would show the host's network interfaces.
    linux.mount("sysfs", str(sys), "sysfs", _READ_ONLY | linux.MS_NOEXEC)
    if Path(_CGROUPS).is_dir():
        linux.bind_mount(_CGROUPS, str(root / _CGROUPS.lstrip("/")), _READ_ONLY | linux.MS_NOEXEC)


def _make_devices(root: Path, launch: LaunchSpec) -> None:
    dev = root / "dev"
    dev.mkdir()
    linux.mount("tmpfs", str(dev), "tmpfs", linux.MS_NOSUID | linux.MS_NOEXEC, "mode=755,size=1m")
    for path in (*(f"/dev/{name}" for name in _DEVICES), *launch.devices):
        inside = root / path.lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.touch()
        linux.bind_mount(path, str(inside))
    (dev / "pts").mkdir()
    options = "newinstance,ptmxmode=0666,mode=620"
    linux.mount("devpts", str(dev / "pts"), "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "shm").mkdir()
    linux.mount("tmpfs", str(dev / "shm"), "tmpfs", _OWN, f"mode=1777{_tmpfs_bound(launch.memory, _SHM_PART)}")
    (dev / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{number}")


def _tmpfs_bound(memory: int | None, part: float) -> str:
    """Mount options. Without them one tmpfs could fill half of the machine's memory."""
    if memory is None:
        return ""
    size = max(_MIN_TMPFS_BYTES, int(memory * part))
    return f",size={size},nr_inodes={size // _BYTES_PER_INODE}"


def _hide(root: Path, hidden: Iterable[str]) -> None:
    """Mount an empty folder over each hidden path within a system folder."""
    for path in hidden:
        parts = Path(os.path.realpath(path)).parts
        inside = root.joinpath(*parts[1:])
        if len(parts) > 1 and parts[1] in _SYSTEM_TREES and inside.is_dir():
            linux.mount("tmpfs", str(inside), "tmpfs", _READ_ONLY, "mode=555,size=4k")


def _device_groups(devices: Iterable[str]) -> list[int]:
    """Groups that may open these devices, where not all users may."""
    infos = [path.stat() for path in map(Path, devices) if path.exists()]
    restricted = (info for info in infos if not info.st_mode & stat.S_IWOTH and info.st_mode & stat.S_IWGRP)
    return sorted({info.st_gid for info in restricted if info.st_gid != 0})
