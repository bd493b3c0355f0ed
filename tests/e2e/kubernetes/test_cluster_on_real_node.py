"""Dev servers on a real node: they keep every cluster's promises, and people can work there."""

import asyncio
import contextlib
import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.cluster_contract import ClusterContract, ClusterWorld
from gpudev.adapters.kubernetes.objects.pod_manifest import DEV_CONTAINER
from gpudev.domain.disks.contents import DiskEntryKind
from gpudev.domain.errors import ClusterError
from gpudev.ports.cluster import ServerPhase
from gpudev.sdk.remote import remote_commands
from support.kubernetes.real_node import RealNode
from support.kubernetes.real_node_world import RealWorld

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
async def world(furnished_node: RealNode, real_namespace: str, tmp_path: Path) -> AsyncIterator[RealWorld]:
    async with RealWorld(furnished_node, real_namespace, tmp_path) as world:
        yield world


class TestKubernetesClusterOnARealNode(ClusterContract):
    @pytest.fixture
    async def world(self, furnished_node: RealNode, real_namespace: str, tmp_path: Path) -> AsyncIterator[ClusterWorld]:
        async with RealWorld(furnished_node, real_namespace, tmp_path) as world:
            yield world


async def test_people_get_in_by_ssh_and_work_as_dev_with_sudo(world: RealWorld) -> None:
    spec = world.spec(name="mine", environment={"MODEL": "$(whoami) `id`; x"})
    connection = (await world.ready(spec)).connection
    assert connection is not None
    assert (
        await world.ssh(connection, "id -un; pwd; echo $MODEL; echo $GPU_DEV_NAME")
        == "dev\n/home/dev\n$(whoami) `id`; x\nmine\n"
    )
    assert await world.ssh(connection, "sudo -n id -un") == "root\n"
    assert await world.ssh(connection, "echo kept > /home/dev/file && cat /home/dev/file") == "kept\n"
    assert await world.ssh(connection, "touch /workspace/mine && ls /workspace") == "mine\n"


async def test_what_the_owner_brings_is_there_and_what_became_of_it_is_told(world: RealWorld) -> None:
    brought = {"PIN": "planted $(id)\nin two lines"}
    script = '#!/bin/sh\nprintf %s "$PIN" > ~/pin\nexit 5\n'
    spec = world.spec(environment=brought, dotfiles="https://127.0.0.1:1/nobody/there", startup_script=script)
    connection = (await world.ready(spec)).connection
    assert connection is not None
    async with asyncio.timeout(60):
        changes = world.cluster.changes()
        while "ended with 5" not in str(seen := await world.seen(spec.reservation_id)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.5)
    assert seen is not None
    assert seen.setup_outcome is not None
    assert seen.setup_outcome.startswith("dotfiles: ")  # that image may have no git
    assert await world.ssh(connection, "cat ~/pin") == brought["PIN"]
    assert await world.ssh(connection, 'printf %s "$PIN"') == brought["PIN"]
    assert "planted" not in await world.ssh(connection, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


async def test_inside_there_is_no_way_to_the_cluster_and_no_more_power_than_sudo_needs(world: RealWorld) -> None:
    connection = (await world.ready(world.spec())).connection
    assert connection is not None
    assert await world.ssh(connection, "ls /var/run/secrets 2>/dev/null | wc -l") == "0\n"
    assert await world.ssh(connection, "sudo grep Seccomp: /proc/1/status") == "Seccomp:\t2\n"
    bounding = int((await world.ssh(connection, "sudo grep CapBnd /proc/1/status")).split()[1], 16)
    sys_admin, net_admin, sys_ptrace, mknod = 21, 12, 19, 27
    assert not any(bounding >> number & 1 for number in (sys_admin, net_admin, sys_ptrace, mknod))
    assert await world.ssh(connection, "cat /gpudev/config/host_key 2>&1 | grep -c PRIVATE || true") == "0\n"
    assert "Read-only" in await world.ssh(connection, "sudo rm /gpudev/bin/gpudev-devserver 2>&1 || true")


async def test_shared_memory_is_half_of_the_memory(world: RealWorld) -> None:
    connection = (await world.ready(world.spec())).connection
    assert connection is not None
    shared = int(await world.ssh(connection, "df -k --output=size /dev/shm | tail -1"))
    assert shared > 512 * 1024


async def test_members_of_a_gang_reach_each_other_by_name_and_hold_the_key_to_get_in(world: RealWorld) -> None:
    """There is no DNS on this node: the names are in the hosts file."""
    spec = world.spec(nodes=2)
    connection = (await world.ready(spec)).connection
    assert connection is not None
    other = f"{spec.pod_name}-1"
    await world.ssh(connection, f"for _ in $(seq 150); do grep -q {other} /etc/hosts && break; sleep 0.2; done")
    greeted = "import socket; print(socket.create_connection(('%s', 22), 10).recv(7).decode())"
    for name in (other, f"{other}.{spec.pod_name}-gang"):
        assert await world.ssh(connection, f'python3 -c "{greeted % name}"') == "SSH-2.0\n"
    assert await world.ssh(connection, "grep -c PRIVATE .ssh/gpu-dev/mesh_key") == "2\n"
    assert other in await world.ssh(connection, "cat .ssh/gpu-dev/config")
    assert await world.ssh(connection, "echo $NODE_RANK $WORLD_SIZE $MASTER_PORT") == "0 2 29500\n"


async def test_a_message_is_shown_in_open_terminals(world: RealWorld) -> None:
    spec = world.spec()
    connection = (await world.ready(spec)).connection
    assert connection is not None
    await world.ssh(connection, "true")
    terminal = await asyncio.create_subprocess_exec(
        *world.ssh_command(connection, "-tt", "echo here; sleep 60"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert terminal.stdout is not None
    try:
        async with asyncio.timeout(30):
            await terminal.stdout.readuntil(b"here")
            await world.cluster.send_message(spec.reservation_id, "this dev server ends in 5 minutes")
            await terminal.stdout.readuntil(b"ends in 5 minutes")
    finally:
        terminal.kill()
        await terminal.wait()


async def test_a_dev_server_tells_what_is_in_its_home(world: RealWorld) -> None:
    """Also what is closed to others, and nothing of where links lead."""
    spec = world.spec()
    connection = (await world.ready(spec)).connection
    assert connection is not None
    made = "mkdir -p -m 700 secret/deep && printf 12345 > secret/deep/file && ln -s /usr own && touch '$(id) x'"
    await world.ssh(connection, made)
    contents = await world.cluster.home_contents(spec.reservation_id)
    assert contents is not None and contents.is_complete
    told = {entry.path: (entry.kind, entry.size) for entry in contents.entries}
    assert told["secret/deep/file"] == (DiskEntryKind.FILE, 5)
    assert told["secret"] == (DiskEntryKind.FOLDER, 0)
    assert told["own"] == (DiskEntryKind.LINK, 0)
    assert "$(id) x" in told
    assert all(not path.startswith("own/") for path in told)
    with pytest.raises(ClusterError, match="wrote more than"):  # one who has the pod writes without end
        await world.cluster._api.exec_in_pod(spec.pod_name, DEV_CONTAINER, ["yes"], max_bytes=100_000)
    message = "ä message\n".encode() * 20_000
    assert await world.cluster._api.exec_in_pod(spec.pod_name, DEV_CONTAINER, ["cat"], message) == message
    await world.kill(spec.reservation_id)
    await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert await world.cluster.home_contents(spec.reservation_id) is None, "who is dead says nothing"


async def test_one_whose_command_has_ended_has_told_what_is_in_its_home(world: RealWorld) -> None:
    """Nobody can ask it by then."""
    spec = world.spec()
    connection = (await world.ready(spec)).connection
    assert connection is not None
    command = "printf 12345 > result; seq 1 100; exit 3"
    await world.ssh(connection, shlex.join(remote_commands.detached_command(".", [command], ends_reservation=True)))
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert seen.command_exit is not None and seen.command_exit.exit_code == 3
    contents = await world.cluster.home_contents(spec.reservation_id)
    assert contents is not None and contents.is_complete
    assert {entry.path: entry.size for entry in contents.entries}["result"] == 5


async def test_a_crash_is_told_with_what_the_dev_server_logged_last(world: RealWorld) -> None:
    spec = world.spec()
    await world.ready(spec)
    await world.kill(spec.reservation_id)
    seen = await world.until(spec.reservation_id, ServerPhase.DEAD)
    assert "killed by signal 9" in (seen.reason or "")
    assert "serving" in (seen.reason or "").partition("Its last log lines:")[2]
