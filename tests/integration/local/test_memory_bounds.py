"""What one dev server can take of the machine's memory, in processes and in files that belong to no process."""

import asyncio
from pathlib import Path

import pytest

from gpudev.adapters.local.machine import linux
from gpudev.adapters.local.machine.cgroups import find_cgroup_limiter
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.adapters.local.machine.nodes import LocalNode, LocalNodes
from gpudev.ports.clock import SystemClock
from gpudev.ports.cluster import ServerPhase
from support.local.local_world import IS_ROOT, MODES, ONLY_LINUX, LocalWorld

pytestmark = [pytest.mark.slow, ONLY_LINUX]
MB = 1024**2
NODE = LocalNode("small", "h100", 4, simulated=True, cpus=2, memory=1024 * MB)
_ALLOCATE = f"import sys; block = bytearray({600 * MB}); print(len(block))"


def _has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines() if linux.IS_LINUX else []
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff")]
    return any(mask >> number & 1 for mask in masks)


MAY_LOWER = _has_capability(linux.CAP_SYS_RESOURCE)


def world_of(mode: IsolationMode) -> LocalWorld:
    return LocalWorld(SystemClock(), mode, nodes=LocalNodes((NODE,), "made up"))


@pytest.mark.parametrize("mode", MODES[:1], indirect=True)
async def test_files_in_memory_are_bounded_by_the_share(world: LocalWorld) -> None:
    share = world.nodes.nodes[-1].memory // world.nodes.nodes[-1].units
    seen = await world.ready(world.spec())
    sizes = await world.out(seen, 'df --block-size=1 --output=size /dev/shm "$XDG_RUNTIME_DIR" | tail -2')
    shm, runtime = map(int, sizes.split())
    assert share * 0.4 < shm <= share * 0.5
    assert share * 0.05 < runtime <= share * 0.1 + 4096  # whole pages
    inodes = await world.out(seen, 'df --output=itotal /dev/shm "$XDG_RUNTIME_DIR" | tail -2')
    assert max(map(int, inodes.split())) <= share // 4096
    await world.out(seen, "head -c 10000000 /dev/zero >/dev/shm/some && rm /dev/shm/some")


@pytest.mark.skipif(not IS_ROOT, reason="only root sets limits")
async def test_a_dev_server_gets_no_more_memory_than_its_share_in_whichever_version_of_cgroups() -> None:
    if not find_cgroup_limiter().limits("memory"):
        pytest.skip("no cgroups can be written here")
    async with world_of(MODES[0]) as world:
        spec, other = world.spec(), world.spec()
        seen, unharmed = await world.ready(spec), await world.ready(other)
        assert (await world.ssh(seen, f"python3 -c '{_ALLOCATE}'")).returncode != 0
        assert (await world.ssh(seen, "head -c 250M /dev/zero >/dev/shm/x")).returncode != 0
        await world.out(seen, "rm -f /dev/shm/x; echo it goes on")
        assert await world.out(unharmed, "echo here too") == "here too"
        for reservation_id in (spec.reservation_id, other.reservation_id):
            assert (await world.until(reservation_id, ServerPhase.READY)).phase is ServerPhase.READY
    folders = [folder.path for folder in find_cgroup_limiter().folders]
    assert not [path for folder in folders for path in folder.glob(f"{spec.reservation_id}*")]


async def test_when_memory_runs_out_users_processes_go_first_and_users_cannot_change_that(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    assert await world.out(seen, "cat /proc/self/oom_score_adj") == str(linux.OOM_SCORE_OF_USERS)
    assert await world.out(seen, "cat /proc/$PPID/oom_score_adj") == str(linux.OOM_SCORE_OF_USERS)
    if MAY_LOWER:
        assert (await world.ssh(seen, "echo 0 >/proc/self/oom_score_adj")).returncode != 0


@pytest.mark.skipif(not MAY_LOWER, reason="only CAP_SYS_RESOURCE may lower it")
async def test_the_score_of_the_control_plane_does_not_pass_on_to_users() -> None:
    own = Path("/proc/self/oom_score_adj")
    before = await asyncio.to_thread(own.read_text)
    assert linux.set_oom_score_adj(linux.OOM_SCORE_OF_SYSTEM)
    try:
        async with LocalWorld(SystemClock(), MODES[0]) as world:
            await world.cluster.close()
            await world.open()  # with a zygote that was started now
            spec = world.spec()
            seen = await world.ready(spec)
            assert await world.out(seen, "cat /proc/self/oom_score_adj") == str(linux.OOM_SCORE_OF_USERS)
            assert (await world.ssh(seen, "echo 499 >/proc/self/oom_score_adj")).returncode != 0
            first = world.first_process(spec.reservation_id)
            score = await asyncio.to_thread(Path(f"/proc/{first.pid}/oom_score_adj").read_text)
            assert int(score) == linux.OOM_SCORE_OF_SYSTEM
    finally:
        linux.set_oom_score_adj(int(before))
