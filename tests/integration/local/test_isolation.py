"""What a dev server's user cannot see or do."""

import os
import platform
import pwd
import secrets
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpudev.adapters.local.cluster import LocalCluster
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.nodes import LocalNode, LocalNodes
from gpudev.adapters.local.servers.pid1_reports import COMMAND_EXIT_FILE, JUPYTER_FILE, LOG_FILE
from gpudev.domain.errors import ClusterError
from gpudev.domain.ids import new_disk_id
from gpudev.ports.clock import SystemClock
from support.local.local_world import ALICE, BOB, GB, IS_ROOT, ONLY_LINUX, LocalWorld

pytestmark = [pytest.mark.slow, ONLY_LINUX]
SHOWN = {
    *("bin", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "sbin", "usr"),
    *("dev", "home", "mnt", "proc", "root", "run", "srv", "sys", "tmp", "var", "workspace"),
}
DEVICES = [
    path
    for name in ("kmsg", "fuse", "loop-control", "hpet", "rtc0", "vhost-net", "kvm")
    if (path := Path("/dev", name)).exists()
]
"""Any two devices of this machine play GPUs."""
NAMESPACES = IsolationMode.ROOT if IS_ROOT else IsolationMode.USER


@pytest.fixture(params=[NAMESPACES], ids=[NAMESPACES.value])
def mode(request: pytest.FixtureRequest) -> IsolationMode:
    found: IsolationMode = request.param
    return found


async def test_nothing_of_the_host_is_seen_but_the_system(world: LocalWorld) -> None:
    (world.state_dir / "secret").write_text("s3cret")
    with socket.socket(socket.AF_UNIX) as database:
        database.bind(str(world.state_dir / ".s.PGSQL.5432"))
    seen = await world.ready(world.spec())
    assert set((await world.out(seen, "ls /")).split()) <= SHOWN
    assert await world.out(seen, "ls /home") == "dev"
    assert await world.out(seen, "ls -A /root /mnt /srv /tmp /var/tmp /workspace | grep -v : | grep . || true") == ""
    assert set((await world.out(seen, "ls /run")).split()) <= {
        "gpu-dev",
        "gpu-dev-etc",
        "user",
        "systemd",
        "resolvconf",
    }
    for path in (world.state_dir, world.folder, Path(__file__), Path("/var/lib/dpkg")):
        assert (await world.ssh(seen, f"test -e '{path}'")).returncode == 1, path
    assert await world.out(seen, f"ls -A '{pwd.getpwuid(os.getuid()).pw_dir}' 2>/dev/null || true") == ""
    # Whatever the files' names: the sockets and the text are nowhere.
    assert await world.out(seen, "find / -xdev -name '.s.PGSQL*' 2>/dev/null | head -1") == ""


async def test_the_papers_it_is_given_hold_no_secret_and_cannot_be_changed(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    assert set((await world.out(seen, "ls /run/gpu-dev")).split()) == {"authorized_keys", "messages", "motd"}
    for name in ("authorized_keys", "messages", "new"):
        assert (await world.ssh(seen, f"echo x >> /run/gpu-dev/{name}")).returncode != 0
    assert await world.out(seen, "grep -rl 'PRIVATE KEY' /run /home /workspace /tmp /var 2>/dev/null || true") == ""


async def test_a_state_folder_inside_a_system_folder_is_hidden(mode: IsolationMode) -> None:
    if not (IS_ROOT and os.access("/opt", os.W_OK)):
        pytest.skip("only root can put its state there")
    folder = Path("/opt") / f"gpu-dev-test-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        async with LocalWorld(SystemClock(), mode, folder=folder) as world:
            seen = await world.ready(world.spec())
            assert (
                await world.out(seen, f"ls -A {world.state_dir}; touch {world.state_dir}/x 2>/dev/null || true") == ""
            )
            assert await world.out(seen, "cd; echo home > x; cat x") == "home"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_only_its_own_processes_are_seen(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    pids = (await world.out(seen, "ls /proc | grep -E '^[0-9]+$'")).split()
    assert len(pids) < 10
    assert str(os.getpid()) not in pids or os.getpid() < 50
    assert (await world.ssh(seen, "cat /proc/1/environ /proc/1/mem")).returncode != 0
    assert (await world.ssh(seen, "ls /proc/1/fd/ /proc/1/root/")).returncode != 0


async def test_the_user_has_no_privileges_and_can_get_none(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    status = await world.out(seen, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    capabilities = [line.split()[1] for line in status.splitlines() if line.startswith("Cap")]
    assert len(capabilities) == 5
    assert {int(mask, 16) for mask in capabilities} == {0}
    assert "NoNewPrivs:\t1" in status
    for command in (
        "touch /usr/x",
        "touch /etc/x",
        "touch /x",
        "echo x > /sys/kernel/mm/transparent_hugepage/enabled",
        "mount -o remount,rw /usr",
        "umount /proc",
        "hostname other",
        "mknod ~/null c 1 3",
        "su -c true",
    ):
        assert (await world.ssh(seen, command)).returncode != 0, command


class WithUserNamespaces(LocalWorld):
    def make_cluster(self) -> LocalCluster:
        return LocalCluster(self.state_dir, self.nodes, self.clock, mode=self.mode, has_user_namespaces=True)


async def test_a_user_namespace_of_its_own_does_not_open_the_system(mode: IsolationMode) -> None:
    async with WithUserNamespaces(SystemClock(), mode) as world:
        seen = await world.ready(world.spec())
        if (await world.ssh(seen, "unshare -Urm true")).returncode != 0:
            pytest.skip("user namespaces are not allowed here")
        for command in ("mount -o remount,rw /usr && touch /usr/x", "umount /run/gpu-dev", "umount -l /etc"):
            assert (await world.ssh(seen, f"unshare -Urm sh -c '{command}'")).returncode != 0, command


async def test_user_namespaces_are_off_unless_an_operator_wants_them(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    assert (await world.ssh(seen, "unshare -U true")).returncode != 0
    by_clone = "import ctypes; raise SystemExit(ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0) == -1)"
    if platform.machine() == "x86_64":
        assert (await world.ssh(seen, f"python3 -c '{by_clone}'")).returncode == 1
    threads = "import subprocess, threading; threading.Thread(target=subprocess.run, args=(['echo', 'ran'],)).start()"
    assert await world.out(seen, f'python3 -c "{threads}"') == "ran"
    assert "Seccomp:\t2" in await world.out(seen, "cat /proc/self/status")


async def test_nothing_of_the_control_plane_stays_open(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    assert (await world.out(seen, "ls /proc/self/fd")).split() == ["0", "1", "2", "3"]  # 3: the listing itself
    if IS_ROOT:
        sshd = world.first_process(spec.reservation_id).children()[0]
        links = open_files(sshd.pid)
        ours = {Path(link).name for link in links if str(world.state_dir) in link}
        # What it has to say goes there, and is read as a stranger's text.
        assert ours <= {LOG_FILE, JUPYTER_FILE, COMMAND_EXIT_FILE}


async def test_only_the_devices_of_its_own_gpus_exist(mode: IsolationMode) -> None:
    first, second = (str(path) for path in DEVICES[:2])
    node = LocalNode("real", "h100", 2, simulated=False, cpus=2, memory=GB, devices=((first,), (second,)))
    async with LocalWorld(SystemClock(), mode, nodes=LocalNodes((node,), "made up")) as world:
        seen = await world.ready(world.spec())
        devices = set((await world.out(seen, "find /dev -exec test -c {} -o -b {} ';' -print")).split())
        assert first in devices
        assert second not in devices
        usual = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/ptmx")}
        extra = {path for path in devices - usual - {first} if not path.startswith(("/dev/pts/", "/dev/nvidia"))}
        assert not extra


async def test_two_users_see_neither_files_nor_processes_of_each_other(world: LocalWorld) -> None:
    mine = replace(world.spec(), disk_id=new_disk_id(), disk_name="work")
    theirs = replace(world.spec(), user_id=BOB, username="bob", disk_id=new_disk_id(), disk_name="work")
    alice, bob = await world.ready(mine), await world.ready(theirs)
    mark = f"mark{secrets.token_hex(6)}"
    await world.out(
        alice,
        f"for d in ~ /workspace /tmp /var/tmp /dev/shm $XDG_RUNTIME_DIR; do echo {mark} > $d/{mark}; done;"
        f"(exec -a {mark} sleep 1000 >/dev/null 2>&1 &)",
    )
    assert mark in await world.out(alice, "cat /proc/*/cmdline | tr '\\0' ' '")
    assert await world.out(bob, f"find / -name '{mark}*' 2>/dev/null | head -1") == ""
    assert mark not in await world.out(bob, "cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '")
    assert (await world.ssh(bob, f"pkill -f {mark[1:]}")).returncode == 1
    if IS_ROOT:
        assert await world.out(alice, "id -u") != await world.out(bob, "id -u")
        disk = world.state_dir / "disks" / str(mine.disk_id)
        assert disk.stat().st_mode & 0o077 == 0


async def test_a_terminal_works_in_there(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    assert (await world.out(seen, "script -qc tty /dev/null")).strip().startswith("/dev/pts/")


@pytest.mark.skipif(not IS_ROOT, reason="needs two uids")
async def test_own_uids_keep_files_apart_where_namespaces_are_forbidden() -> None:
    async with LocalWorld(SystemClock(), IsolationMode.UIDS) as world:
        alice = await world.ready(world.spec(user_id=ALICE))
        bob = await world.ready(world.spec(user_id=BOB))
        home = await world.out(alice, "echo mine > ~/mine; echo ~")
        assert (await world.ssh(bob, f"cat {home}/mine")).returncode != 0
        assert (await world.ssh(bob, f"ls {world.state_dir} {world.state_dir}/servers")).returncode != 0
        pid = int(await world.out(alice, "(sleep 1000 >/dev/null 2>&1 & echo $!)"))
        assert (await world.ssh(bob, f"kill {pid}")).returncode != 0
        assert psutil.pid_exists(pid)
        assert "uid" in world.cluster.isolation


async def test_a_way_that_does_not_work_here_is_refused_when_asked_for(mode: IsolationMode) -> None:
    if IS_ROOT:
        pytest.skip("root may do it all")
    world = LocalWorld(SystemClock(), IsolationMode.ROOT)
    with pytest.raises(ClusterError, match="unshare"):
        await world.open()
    await world.cluster.close()
    shutil.rmtree(world.folder)


async def test_the_best_way_is_found_without_being_asked_for() -> None:
    async with LocalWorld(SystemClock(), None) as world:
        assert world.cluster._isolation_result is not None
        assert world.cluster._isolation_result.mode is NAMESPACES
        assert "namespaces" in world.cluster.isolation


def open_files(pid: int) -> set[str]:
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
