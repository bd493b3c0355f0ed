"""The whole system over a node on which pods really run: from `gpu-dev reserve` to work in there, and to its end."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest
import pytest_asyncio

from gpudev.embedded.postgres import EmbeddedPostgres
from support.kubernetes.api import KubeApi
from support.kubernetes.images import DEV_IMAGE
from support.kubernetes.real_node import RealNode
from support.kubernetes.real_node_world import INIT_IMAGE, import_dev_server
from support.kubernetes.second_node import second_node
from support.kubernetes.whole_system import KINDS, Job, KubeSystem, fresh_database, system_on
from support.ssh.dev_server_program import CannotCompile, compiled_program
from support.system.warm_programs import CLIENT
from support.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
NAMESPACE = "gpu-dev"
SETTINGS = {
    "GPU_DEV_INIT_IMAGE": INIT_IMAGE,
    "GPU_DEV_TERMINATION_GRACE": "2",
    "GPU_DEV_PREPARING_DEADLINE": "60",
    "GPU_DEV_WARNING_MINUTES": "5",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(
    real_node: RealNode, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeSystem]:
    try:
        program = await asyncio.to_thread(compiled_program)
    except CannotCompile as error:
        pytest.skip(f"NOT TESTED: the dev server's program cannot be compiled: {error}")
    await asyncio.to_thread(import_dev_server, real_node, program, tmp_path_factory.mktemp("dev-server"))
    api = await KubeApi.connect(real_node.plane.kubeconfig)
    folder = tmp_path_factory.mktemp("system")
    async with (
        fresh_database(postgres) as database,
        system_on(real_node.plane.kubeconfig, api, database, folder, namespace=NAMESPACE, **SETTINGS) as running,
    ):
        await running.sees_nodes(real_node.name)
        yield running
        await running.clear()
    await api.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def job(system: KubeSystem) -> Job:
    return await system.reserve("--gpus", "1", "--image", DEV_IMAGE, "--name", "mine")


async def inside(system: KubeSystem, job: Job, command: str) -> str:
    said, _ = await system.run("connect", job["job_id"][:8], "--", command)
    return said


async def test_reserve_gives_a_shell_as_dev_with_sudo_and_a_home(
    system: KubeSystem, job: Job, real_node: RealNode
) -> None:
    assert job["status"] == "active"
    assert job["ssh_command"] == f"ssh -p {job['node_port']} dev@{real_node.address}"
    assert await inside(system, job, "whoami; pwd") == "dev\n/home/dev\n"
    assert await inside(system, job, "sudo -n whoami") == "root\n"
    assert await inside(system, job, "echo kept > /home/dev/note && cat /home/dev/note") == "kept\n"
    assert await inside(system, job, "echo $GPU_DEV_NAME $NVIDIA_DRIVER_CAPABILITIES") == (
        "mine compute,utility,video,graphics\n"
    )


async def test_the_command_that_is_printed_works_as_it_stands(system: KubeSystem, job: Job) -> None:
    home = system.people.home
    known = home / "known"
    known.write_text(f"[{job['node_ip']}]:{job['node_port']} {job['ssh_host_key']}\n")
    plain = [*job["ssh_command"].split(), "-F", "none", "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    plain += ["-o", "StrictHostKeyChecking=yes", "-i", str(home / ".gpu-dev" / "id_ed25519"), "echo in"]
    done = await asyncio.to_thread(subprocess.run, plain, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr


async def test_scp_carries_files_both_ways(system: KubeSystem, job: Job, tmp_path: Path) -> None:
    sent, returned = tmp_path / "sent", tmp_path / "returned"
    sent.write_bytes(os.urandom(3_000_000))
    options = [*system.people.ssh_options(job), "-P", str(job["node_port"])]
    there = f"dev@{job['node_ip']}:carried"
    for source, target in ((str(sent), there), (there, str(returned))):
        await asyncio.to_thread(
            subprocess.run, ["scp", "-q", *options, source, target], check=True, timeout=60, capture_output=True
        )
    assert returned.read_bytes() == sent.read_bytes()


async def test_ssh_scp_sftp_and_rsync_go_through_https_where_node_ports_are_closed(
    system: KubeSystem, job: Job, tmp_path: Path
) -> None:
    command = " ".join([*CLIENT.command, "proxy-command", job["job_id"]])
    options = [*system.people.ssh_options(job), "-o", f"ProxyCommand={command}"]
    there = "dev@nowhere.invalid"  # nobody could find another way
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(100):
        (folder / f"file-{number}").write_bytes(os.urandom(number * 100))
    sent, returned, orders = tmp_path / "sent", tmp_path / "returned", tmp_path / "orders"
    sent.write_bytes(os.urandom(3_000_000))
    orders.write_text(f"get through-https {returned}\n")

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, arguments, env=system.people.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    await run("scp", "-q", *options, str(sent), f"{there}:through-https")
    await run("sftp", "-q", *options, "-b", str(orders), there)
    assert returned.read_bytes() == sent.read_bytes()
    if shutil.which("rsync") is None:
        pytest.skip("NOT TESTED: there is no rsync on this machine")
    shell = " ".join(f"'{part}'" for part in ("ssh", *options))
    await run("rsync", "-a", "-e", shell, f"{folder}/", f"{there}:synced/")
    assert await run("ssh", *options, there, "ls synced | wc -l; cat synced/* | wc -c") == "100\n495000\n"
    said, _ = await system.run("connect", "--proxy", job["job_id"][:8], "--", "hostname")
    assert said == f"{job['pod_name']}\n"


async def test_a_warning_appears_in_an_open_terminal(system: KubeSystem) -> None:
    brief = await system.ask("reserve", "--gpus", "1", "--hours", "0.0845", "--image", DEV_IMAGE, "--yes")
    # Five minutes and four seconds: the warning comes while the terminal is open, or greets whoever opens it late.
    await asyncio.to_thread(_wait_for_warning, system, brief)
    await system.run("cancel", brief["job_id"], "--yes")
    await system.released(brief)


def _wait_for_warning(system: KubeSystem, job: Job) -> None:
    connect = [*CLIENT.command, "connect", job["job_id"]]
    with Terminal(connect, rows=24, columns=100, env=system.people.environment) as terminal:
        terminal.wait_for("$", seconds=20)
        terminal.wait_for("in 5 minutes", seconds=30)


async def test_run_copies_a_folder_runs_a_command_there_and_frees_the_gpus(
    system: KubeSystem, job: Job, tmp_path: Path
) -> None:
    """With somebody who waits for it, and let go: then the dev server itself says that the command has ended."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.sh").write_text('printf "%s|" "$@"; pwd; ls; echo warning >&2; exit 7\n')
    wanted = ("--gpus", "1", "--hours", "1", "--image", DEV_IMAGE, "--disk", "none", "--folder", str(folder), "--yes")
    said, told = await system.run("run", *wanted, "--", "sh", "train.sh", "two words", code=7)
    assert said == "two words|/home/dev/project\ntrain.sh\n"
    assert "warning" in told

    command = "echo up; until [ -e ~/go ]; do sleep 0.1; done; sh train.sh let go"
    said, _ = await system.run("run", "--detach", *wanted, "--", command)
    let_go = await system.ask("status", said.strip())
    assert (await system.run("logs", let_go["job_id"], "--output"))[0] == "up\n"
    await inside(system, let_go, "touch ~/go")
    await system.released(let_go)
    (ended,) = [event for event in await system.events(let_go) if event["kind"] == "expired"]
    first, *lines = ended["message"].splitlines()
    assert first == "the command ended with exit code 7"
    assert lines == ["Last lines:", "up", "let|go|/home/dev/project", "train.sh", "warning"]
    assert [one["job_id"] for one in (await system.ask("list"))["jobs"]] == [job["job_id"]], "nothing stays of either"


async def test_cancel_ends_what_runs_there_and_leaves_nothing(system: KubeSystem, job: Job) -> None:
    """Last: it ends the one that the others use."""
    await inside(system, job, "nohup setsid sleep 987650 >/dev/null 2>&1 & disown")
    assert system.people.processes_with("sleep 987650")
    await system.run("cancel", job["job_id"], "--yes")
    await system.released(job)
    assert system.people.processes_with("sleep 987650") == []
    assert await system.objects() == {kind: [] for kind in KINDS}
    events = {event["kind"]: datetime.fromisoformat(event["at"]) for event in await system.events(job)}
    assert (events["released"] - events["cancelled"]).total_seconds() < 15


async def test_the_members_of_a_gang_on_two_nodes_reach_each_other_by_name_and_by_ssh(
    system: KubeSystem, real_node: RealNode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whole nodes: nobody else may be there. The images have no ssh client, so this machine's goes through member 0."""
    folder = tmp_path_factory.mktemp("second")
    with second_node(real_node, folder / "node") as second:
        await second.ready(system.api)
        (folder / "image").mkdir()
        await asyncio.to_thread(import_dev_server, second, compiled_program(), folder / "image")
        await system.sees_nodes(real_node.name, second.name)
        try:
            await _check_gang(system, {real_node.name, second.name}, folder)
        finally:
            await system.clear()
    await system.api.delete("nodes", second.name)


async def _check_gang(system: KubeSystem, nodes: set[str], folder: Path) -> None:
    gang = await system.reserve("--gpus", "16", "--image", DEV_IMAGE)
    assert {share["node"] for share in gang["nodes"]} == nodes
    assert await inside(system, gang, "echo $NODE_RANK $WORLD_SIZE $MASTER_PORT") == "0 2 29500\n"
    other = f"{gang['pod_name']}-1"
    await inside(system, gang, f"for _ in $(seq 150); do grep -q {other} /etc/hosts && break; sleep 0.2; done")
    through = await _through_member_0(system, gang, folder)
    assert await _ssh(*through, f"dev@{other}", "whoami; hostname; echo $NODE_RANK") == f"dev\n{other}\n1\n"
    listening = asyncio.create_task(inside(system, gang, f"python3 -c '{_LISTEN}'"))
    assert await _ssh(*through, f"dev@{other}", f"python3 -c '{_CALL}'") == "met\n"
    assert await listening == "met\n"
    await system.check_objects()


_MEETING = 'import os, socket; at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))'
_LISTEN = f'{_MEETING}; line, _ = socket.create_server(("", at[1])).accept(); line.sendall(b"met"); print("met")'
_CALL = f"""{_MEETING}
import time
for _ in range(100):
    try:
        print(socket.create_connection(at, 10).recv(3).decode())
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
"""


async def _through_member_0(system: KubeSystem, gang: Job, folder: Path) -> list[str]:
    """With the key that the members hold, to another member, by the name it has in there."""
    key = folder / "mesh_key"
    key.write_text(await inside(system, gang, "cat ~/.ssh/gpu-dev/mesh_key"))
    key.chmod(0o600)
    known = folder / "known"
    known.write_text(f"gang {gang['ssh_host_key']}\n")
    jump = " ".join([*system.people.ssh(gang), "-W", "%h:%p"])
    options = [f"ProxyCommand={jump}", "HostKeyAlias=gang", f"UserKnownHostsFile={known}", "BatchMode=yes"]
    options += ["StrictHostKeyChecking=yes", "IdentitiesOnly=yes"]
    return ["-F", "none", "-i", str(key), *(word for option in options for word in ("-o", option))]


async def _ssh(*arguments: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, ["ssh", *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
