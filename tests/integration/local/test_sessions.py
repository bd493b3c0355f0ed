"""What a person finds in a dev server on this machine."""

import asyncio
import os
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpudev.adapters.key_pairs import ensure_host_key
from gpudev.adapters.local.machine.isolation import IsolationMode
from gpudev.domain.ids import new_disk_id
from gpudev.ports.cluster import ServerPhase
from support.local.local_world import ALICE, LocalWorld, uid_of
from support.polling import eventually_async

pytestmark = pytest.mark.slow


async def environment(world: LocalWorld, seen: object) -> dict[str, str]:
    lines = (await world.out(seen, "env")).splitlines()  # type: ignore[arg-type]
    return dict(line.split("=", 1) for line in lines if "=" in line)


async def test_the_environment_tells_what_was_reserved(world: LocalWorld, mode: IsolationMode) -> None:
    world.spec()  # takes GPU 0
    spec = replace(
        world.spec(),
        name="nightly; rm -rf /",
        expires_at=datetime(2026, 5, 1, 12, 0, tzinfo=UTC),
        environment={"TEAM": "vision", "GPU_DEV_USER": "mallory"},
    )
    found = await environment(world, await world.ready(spec))
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert found["GPU_DEV_RESERVATION_ID"] == str(spec.reservation_id)
    assert found["GPU_DEV_POD_NAME"] == spec.pod_name
    assert found["GPU_DEV_GPU_TYPE"] == "h100"
    assert found["GPU_DEV_GPU_COUNT"] == "1"
    assert found["GPU_DEV_USER"] == "alice"
    assert found["GPU_DEV_NODE"] == "c"
    assert found["GPU_DEV_SIMULATED"] == "1"
    assert found["GPU_DEV_NAME"] == "nightly; rm -rf /"
    assert found["GPU_DEV_EXPIRES_AT"] == "2026-05-01T12:00:00+00:00"
    assert found["TEAM"] == "vision"
    assert found["USER"] == "dev"
    assert "RANK" not in found
    if mode.has_namespaces:
        assert (found["HOME"], found["WORKSPACE"]) == ("/home/dev", "/workspace")
    else:
        server = world.state_dir / "servers" / str(spec.reservation_id)
        assert (found["HOME"], found["WORKSPACE"]) == (str(server / "home"), str(server / "workspace"))


async def test_home_workspace_and_tmp_can_be_written_and_belong_to_the_user(world: LocalWorld) -> None:
    seen = await world.ready(world.spec())
    told = await world.out(
        seen, 'for d in ~ "$WORKSPACE" "${TMPDIR:-/tmp}"; do touch "$d/x" && stat -c %U:%u "$d/x"; done; id -u'
    )
    uid = told.splitlines()[-1]
    assert {line.split(":")[1] for line in told.splitlines()[:-1]} == {uid}


async def test_a_disk_belongs_to_its_user_by_a_uid_that_stays(world: LocalWorld) -> None:
    disk = new_disk_id()
    spec = replace(world.spec(), disk_id=disk, disk_name="work")
    seen = await world.ready(spec)
    await world.out(seen, "mkdir -p ~/deep/er && touch ~/deep/er/file")
    on_disk = world.state_dir / "disks" / str(disk) / "deep" / "er" / "file"
    assert on_disk.stat().st_uid == uid_of(ALICE)


async def test_a_new_home_begins_with_the_systems_skeleton_and_an_old_one_is_left_alone(world: LocalWorld) -> None:
    disk = new_disk_id()
    first, second = (replace(world.spec(), disk_id=disk, disk_name="work") for _ in range(2))
    seen = await world.ready(first)
    await world.out(seen, "if test -e /etc/skel/.bashrc; then cmp ~/.bashrc /etc/skel/.bashrc && rm ~/.bashrc; fi")
    await world.gone(first.reservation_id)
    assert "no .bashrc" in await world.out(await world.ready(second), "ls ~/.bashrc 2>/dev/null || echo no .bashrc")


async def test_a_message_appears_in_open_terminals(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    terminal = world.open_session(seen, "echo open; cat", "-tt")
    assert terminal.stdout is not None
    os.set_blocking(terminal.stdout.fileno(), False)
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        assert terminal.stdout is not None
        shown += terminal.stdout.read() or b""
        return text in shown

    await eventually_async(lambda: shows(b"open"))
    await world.cluster.send_message(spec.reservation_id, "ends in \x1b[2J5 minutes")
    await eventually_async(lambda: shows(b"5 minutes"))
    assert b"\x1b[2J" not in shown
    terminal.kill()
    terminal.communicate()


async def test_a_new_terminal_is_greeted(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    done = await asyncio.to_thread(
        subprocess.run, world.ssh_command(seen, "-tt"), input=b"exit\n", capture_output=True, check=False, timeout=30
    )
    assert b"h100 (simulated) on c" in done.stdout
    assert b"scratch" in done.stdout


async def test_only_the_owners_keys_get_in_and_they_can_be_changed_while_it_runs(world: LocalWorld) -> None:
    spec = world.spec()
    seen = await world.ready(spec)
    stranger = ensure_host_key(world.folder / "stranger")
    only_stranger = replace(spec, ssh_public_keys=(stranger, f"ssh-ed25519 AAAA\n{world.public_key}"))
    await world.cluster.ensure_server(only_stranger)
    assert (await world.ssh(seen, "true")).returncode == 255
    await world.cluster.ensure_server(spec)
    assert await world.out(seen, "echo in") == "in"


async def test_the_members_of_a_gang_know_each_other(world: LocalWorld) -> None:
    spec = world.spec(nodes=2)
    seen = await world.ready(spec)
    assert seen.connection is not None
    first = await environment(world, seen)
    ports = [int(port) for port in first["GPU_DEV_SSH_PORTS"].split(",")]
    assert ports[0] == seen.connection.port
    second = await environment(world, replace(seen, connection=replace(seen.connection, port=ports[1])))
    assert (first["RANK"], second["RANK"]) == ("0", "1")
    assert (first["GPU_DEV_NODE"], second["GPU_DEV_NODE"]) == ("a", "b")
    assert first["WORLD_SIZE"] == second["WORLD_SIZE"] == "2"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert first["HOME"] == second["HOME"]


async def test_hostnames_are_those_of_the_reservation(world: LocalWorld, mode: IsolationMode) -> None:
    if not mode.has_namespaces:
        pytest.skip("plain folders have the machine's own name")
    spec = world.spec(nodes=2)
    seen = await world.ready(spec)
    told = await world.out(seen, f"hostname; cat /etc/hostname; getent hosts {spec.pod_name}-1 | cut -d' ' -f1")
    assert told.splitlines() == [spec.pod_name, spec.pod_name, "127.0.0.1"]


async def test_from_asking_to_the_first_output_takes_a_moment(world: LocalWorld) -> None:
    """The goal is a tenth of a second; what must hold on a busy test machine is far more."""
    began = time.monotonic()
    seen = await world.ready(world.spec())
    await world.out(seen, "true")
    assert time.monotonic() - began < 10


async def test_asking_does_not_hold_up_the_event_loop(world: LocalWorld) -> None:
    longest, last = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.001)  # measures how late the loop wakes it
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    heart = asyncio.ensure_future(beat())
    specs = [world.spec() for _ in range(4)]
    await asyncio.gather(*(world.cluster.ensure_server(spec) for spec in specs))
    for spec in specs:
        await world.until(spec.reservation_id, ServerPhase.READY)
    heart.cancel()
    assert longest < 1.0


async def test_files_are_copied_there_and_back_also_where_its_uid_has_no_name(
    world: LocalWorld, tmp_path: Path
) -> None:
    seen = await world.ready(world.spec())
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(b"some bytes" * 1000)
    ssh = world.ssh_command(seen)
    assert seen.connection is not None
    options = [*ssh[1 : ssh.index("-p")], "-P", str(seen.connection.port)]
    for pair in ([str(sent), f"{ssh[-1]}:copy"], [f"{ssh[-1]}:copy", str(back)]):
        done = await asyncio.to_thread(
            subprocess.run, ["scp", "-q", *options, *pair], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    assert back.read_bytes() == sent.read_bytes()
