"""What one user writes into the reports of their dev server does not concern anybody else's."""

from pathlib import Path

import pytest

from gpudev.adapters.local.servers.pid1_reports import COMMAND_EXIT_FILE, JUPYTER_FILE, PERSONALIZATION_FILE
from gpudev.adapters.local.servers.state_folder import MemberFolder
from gpudev.domain.ids import ReservationId
from gpudev.domain.sessions.addons import JupyterSpec, JupyterState
from gpudev.ports.cluster import ServerPhase
from support.local.local_world import BOB, MODES, ONLY_LINUX, LocalWorld

pytestmark = pytest.mark.slow
one_mode = pytest.mark.parametrize("mode", MODES[:1], indirect=True)
DEEP = b"[" * 60_000
_PEEK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
pid = os.getpid()
while open(f"/proc/{pid}/comm").read().strip() != "gpu-dev-sshd":
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
pidfd = libc.syscall(434, pid, 0)
assert pidfd >= 0
taken = [fd for fd in range(64) if libc.syscall(438, pidfd, fd, 0) >= 0]
print("taken", taken, "attached", libc.ptrace(16, pid, None, None) == 0)
for name in ("environ", "fd", "mem", "root", "cwd"):
    try:
        os.listdir(f"/proc/{pid}/{name}") if name == "fd" else open(f"/proc/{pid}/{name}", "rb").read(1)
        print("open", name)
    except PermissionError:
        pass
    except OSError:
        print("open", name)
"""


def member_path(world: LocalWorld, reservation_id: ReservationId) -> Path:
    return world.state_dir / "servers" / str(reservation_id) / "members" / "0"


@one_mode
async def test_a_deep_report_of_one_user_keeps_no_dev_server_from_coming_back(world: LocalWorld) -> None:
    hostile, other = world.spec(), world.spec(user_id=BOB)
    for spec in (hostile, other):
        await world.ready(spec)
    async with world.nobody_watching():
        await world.kill(hostile.reservation_id)
        for name in (COMMAND_EXIT_FILE, JUPYTER_FILE, PERSONALIZATION_FILE):
            (member_path(world, hostile.reservation_id) / name).write_bytes(DEEP)
    await world.until(hostile.reservation_id, ServerPhase.DEAD)
    await world.until(other.reservation_id, ServerPhase.READY)


@one_mode
async def test_the_end_of_a_dev_server_with_a_deep_report_is_noticed(world: LocalWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    for name in (COMMAND_EXIT_FILE, JUPYTER_FILE):
        (member_path(world, spec.reservation_id) / name).write_bytes(DEEP)
    wanted = JupyterSpec("token", "key", "/x/")
    status = await world.cluster.apply_addons(spec.reservation_id, (world.public_key,), wanted)
    assert status is not None
    assert status.state is JupyterState.STARTING
    await world.kill(spec.reservation_id)
    ended = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert ended.command_exit is None


@one_mode
async def test_an_unforeseen_fault_with_one_members_files_fails_no_other(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = world.spec(), world.spec(user_id=BOB)
    for spec in (broken, other):
        await world.ready(spec)
    read = MemberFolder.find_command_exit

    def fail(folder: MemberFolder) -> object:
        if str(broken.reservation_id) in str(folder.path):
            raise RuntimeError("nobody thought of this")
        return read(folder)

    monkeypatch.setattr(MemberFolder, "find_command_exit", fail)
    await world.kill(broken.reservation_id)
    await world.until(broken.reservation_id, ServerPhase.DEAD)
    async with world.nobody_watching():
        pass
    state = await world.until(broken.reservation_id, ServerPhase.DEAD)
    assert state.is_restartable
    await world.until(other.reservation_id, ServerPhase.READY)


@ONLY_LINUX
async def test_programs_of_a_dev_server_get_nothing_out_of_its_ssh_server(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    found = await world.ssh(seen, "python3 -", _PEEK.encode())
    assert found.returncode == 0, found
    assert set(found.stdout.splitlines()) == {"taken [] attached False"}
    # Its own programs are as open to each other as anywhere.
    assert (
        await world.out(seen, "cat /proc/self/environ >/dev/null && ls /proc/self/fd >/dev/null && echo open") == "open"
    )
