"""Programs that use a real system through the SDK: reserve, work there, and leave nothing behind."""

import asyncio
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpudev import AsyncGpuDev, CommandFailed, GpuDev, NotFound, NotInTime, Rejected, ReservationEnded, UsageError
from gpudev.sdk.remote import remote_commands, upload
from gpudev.wire.reservations import JobView
from support.client.fake_api import make_job
from support.polling import eventually_async
from support.system.embedded_system import System

pytestmark = pytest.mark.slow


def test_a_block_has_a_dev_server_and_releases_it_at_its_end(client: GpuDev) -> None:
    changes: list[JobView] = []
    with client.reserve(gpus=2, gpu_type="h100", hours=1, disk="none", on_change=changes.append) as server:
        assert server.job.status == "active"
        assert repr(server) == f"<Server {server.id} (active)>"
        assert server.run("echo $((6 * 7))").stdout == "42\n"
        assert server.run(["printf", "%s|", "two words", "$HOME", "'"]).stdout == "two words|$HOME|'|"
        assert server.run("cat", stdin="from here").stdout == "from here"
        with pytest.raises(CommandFailed, match="not found"):
            server.run(["echo yes"])
        with pytest.raises(UsageError):
            server.run([])
        with pytest.raises(CommandFailed, match="nowhere") as failed:
            server.run("echo so; echo nowhere >&2; exit 3")
        assert (failed.value.exit_code, failed.value.stdout) == (3, "so\n")
        assert server.run("exit 4", check=False).exit_code == 4
        assert server.run("kill -KILL $$", check=False).exit_code == 137
        assert server.run(["sh", "-c", "kill -TERM $$"], check=False).exit_code == 143
        assert server.run("[[ $0 = *bash ]] && echo a line for bash").stdout == "a line for bash\n"
        with pytest.raises(NotInTime):
            server.run("sleep 60", timeout=0.5)
        before = server.job.expires_at
        after = server.extend(1).expires_at
        assert before is not None
        assert after is not None
        assert after > before
    statuses = [job.status for job in changes]
    assert statuses[0] == "pending"
    assert statuses[-1] == "active"
    assert client.jobs.get(server.id).status == "cancelled"
    assert client.jobs.list() == []
    assert server.id in [job.reservation_id for job in client.jobs.list(status=[])]


def test_many_threads_work_on_one_dev_server(client: GpuDev) -> None:
    with client.reserve(gpus=1, disk="none") as server, ThreadPoolExecutor(16) as threads:
        said = threads.map(lambda number: server.run(["echo", str(number)]).stdout, range(32))
        assert list(said) == [f"{number}\n" for number in range(32)]


def test_a_command_that_cannot_be_passed_on_is_said_to_be_that(client: GpuDev) -> None:
    with client.reserve(gpus=1, disk="none") as server:
        with pytest.raises(UsageError, match="NUL"):
            server.run(["echo", "a\0b"])
        with pytest.raises(UsageError, match="too long"):
            server.run(["echo", "x" * 3_000_000])


def test_a_block_has_one_reservation_and_can_be_entered_again_when_it_is_over(client: GpuDev) -> None:
    stay = client.reserve(gpus=1, disk="none")
    for _ in range(2):
        with stay, pytest.raises(UsageError, match="already entered"), stay:
            pytest.fail("the first reservation would be forgotten")
        assert client.jobs.list() == []


def test_a_block_that_fails_releases_it_too_and_fails_with_its_own_reason(client: GpuDev) -> None:
    with pytest.raises(ZeroDivisionError), client.reserve(gpus=1, disk="none"):
        _ = 1 / 0
    assert client.jobs.list() == []


def test_a_command_on_what_has_ended_meanwhile_says_so(client: GpuDev) -> None:
    with client.reserve(gpus=1, disk="none") as server:
        client.jobs.cancel(server.id)
        client.jobs.wait_until_released(server.id)
        assert server.run("echo still there", check=False).exit_code == 255
        with pytest.raises(ReservationEnded, match="cancelled"):
            server.run("echo still there")
        with pytest.raises(ReservationEnded, match="cancelled"):
            server.start("echo still there")


def test_a_wait_that_takes_too_long_or_is_interrupted_releases_what_was_asked_for(client: GpuDev) -> None:
    with client.reserve(gpus=8, disk="none"):
        with pytest.raises(NotInTime), client.reserve(gpus=8, disk="none", timeout=0.5):
            pytest.fail("there are no more than 8 GPUs")

        def interrupt(_job: JobView) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), client.reserve(gpus=8, disk="none", on_change=interrupt):
            pytest.fail("there are no more than 8 GPUs")
        assert len(client.jobs.list()) == 1


def test_results_are_downloaded(client: GpuDev, tmp_path: Path) -> None:
    with client.reserve(gpus=1, disk="none") as server:
        server.run("mkdir -p out/deep && echo one >out/deep/a && echo two >'a: b'")
        assert server.download("out", tmp_path) == tmp_path / "out"
        assert (tmp_path / "out" / "deep" / "a").read_text() == "one\n"
        assert server.download("a: b", tmp_path / "renamed") == tmp_path / "renamed"
        assert (tmp_path / "renamed").read_text() == "two\n"
        with pytest.raises(CommandFailed, match="nowhere"):
            server.download("nowhere", tmp_path)


def test_a_folder_is_copied_without_what_git_ignores(client: GpuDev, tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    (folder / "sub").mkdir(parents=True)
    (folder / ".gitignore").write_text("*.log\n!kept.log\n/data/\n")
    for name in ("train.py", "a b.txt", "x.log", "kept.log", "sub/deep.txt"):
        (folder / name).write_text(name)
    (folder / "data").mkdir()
    (folder / "data" / "huge").write_text("x")
    (folder / "link").symlink_to("train.py")
    (folder / "out").mkdir()  # which a program writes into, and of which git knows nothing
    (folder / "out" / "old.log").write_text("x")
    with client.reserve(gpus=1, disk="none") as server:
        with pytest.raises(UsageError, match=r"no folder .*/nowhere"):
            server.copy_folder(folder / "nowhere")
        assert server.copy_folder(folder) == "my-project"
        found = server.run("cd my-project && find . -type f -o -type l | sort").stdout.split("\n")
        assert found == ["./.gitignore", "./a b.txt", "./kept.log", "./link", "./sub/deep.txt", "./train.py", ""]
        assert server.run("ls -A my-project/out; test ! -e my-project/data").stdout == ""
        (folder / "train.py").write_text("changed")
        server.copy_folder(folder)
        assert server.run("cat my-project/link").stdout == "changed"


def test_a_key_is_rotated_where_it_is_kept(system: System, client: GpuDev) -> None:
    before = client.cluster.status()
    fresh = client.keys.rotate()
    assert client.cluster.status().total_gpus == before.total_gpus
    assert system.run("list").returncode == 0
    other = GpuDev(env=system.environment, api_key=fresh.api_key)
    assert other.jobs.list() == []


@pytest.mark.parametrize("programs", [("ssh", "git"), ("ssh",), ("ssh", "git", "rsync")])
def test_without_an_rsync_that_can_do_it_the_files_go_as_one_stream(
    client: GpuDev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    for name in ("a b.txt", "x.log", "sub/run.sh"):
        (folder / name).write_text(name)
    (folder / "sub" / "run.sh").chmod(0o755)
    (folder / "out" / "empty").mkdir(parents=True)
    if "git" in programs:  # without it nobody could say what this leaves out
        (folder / ".gitignore").write_text("*.log\n")
    found = tmp_path / "bin"
    found.mkdir()
    if "rsync" in programs:  # macOS's own is another program, which knows less the older the system is
        (found / "rsync").write_text("#!/bin/sh\necho \"rsync: unrecognized option '--files-from=-'\" >&2\nexit 1\n")
        (found / "rsync").chmod(0o755)
    for name in set(programs) - {"rsync"}:
        path = shutil.which(name)
        assert path is not None
        (found / name).symlink_to(path)
    with client.reserve(gpus=1, disk="none") as server:
        monkeypatch.setenv("PATH", str(found))
        server.copy_folder(folder, "elsewhere/it")
        names = server.run(
            "cd elsewhere/it && find . -type f | sort; test -x sub/run.sh && test -d out/empty"
        ).stdout.split()
    first, last = (["./.gitignore"], []) if "git" in programs else ([], ["./x.log"])
    assert names == [*first, "./a", "b.txt", "./sub/run.sh", *last]


@pytest.mark.parametrize("target", ["../up", "/etc", "a b", "$(id)", "-x", ""])
def test_files_go_nowhere_but_below_the_home_there(client: GpuDev, tmp_path: Path, target: str) -> None:
    job = make_job(status="active")
    with pytest.raises(UsageError):
        upload.copy_folder(job, {}, None, tmp_path, target)


def test_a_command_that_was_begun_goes_on_by_itself(client: GpuDev) -> None:
    with client.reserve(gpus=1, disk="none") as server:
        nothing = server.output()
        assert nothing.exit_code == remote_commands.EXIT_NOTHING_RAN
        script = 'echo "$1"; until [ -e ~/go ]; do sleep 0.1; done; echo done; exit 5'
        server.start(["sh", "-c", script, "sh", "it's $HOME"])
        with pytest.raises(CommandFailed, match="is still running"):
            server.start("echo second")
        server.run("touch ~/go")
        assert server.output(wait=True) == (5, "it's $HOME\ndone\n", "")
        assert server.output() == (0, "it's $HOME\ndone\n", "")
        server.start("echo $0; kill -9 $PPID; sleep 60")
        assert server.output(wait=True).exit_code == 137


def test_everything_else_a_user_has(client: GpuDev) -> None:
    (offer,) = [one for one in client.cluster.availability() if one.total_cluster_gpus]
    assert (offer.gpu_type, offer.total_cluster_gpus) == ("h100", 8)
    assert client.cluster.status().total_gpus == 8
    assert client.cluster.plan(hours=2, gpu_type="h100").gpu_types[0].nodes
    assert client.cluster.health().status == "ok"
    assert client.stats.eta(days=1).statistics is not None
    with pytest.raises(NotFound):
        client.jobs.get("0000dead")
    with pytest.raises(Rejected) as refused:
        client.jobs.submit(gpus=3, disk="none")
    assert refused.value.problem["field"] == "gpu_count"
    key = str(uuid.uuid4())
    job = client.jobs.submit(gpus=1, disk="none", idempotency_key=key)
    assert client.jobs.submit(gpus=1, disk="none", idempotency_key=key).job_id == job.job_id
    server = client.server(job.job_id)
    assert client.jobs.proxy_token(server.id).reservation_id == server.id
    assert client.users.list(server.id).users == []
    with pytest.raises(Rejected):
        client.users.add(server.id, "two words")
    assert client.jupyter.get(server.id).state == "off"
    assert server.cancel().status == "cancelled"
    with pytest.raises(ReservationEnded, match="cancelled"):
        client.jobs.wait(server.id)
    kinds = [event.kind for event in client.jobs.follow(server.id)]
    # Whoever follows is told until it has ended; that it is released may come a moment later.
    assert kinds == [event.kind for event in client.jobs.events(server.id)][: len(kinds)]
    assert kinds[0] == "submitted"
    assert kinds[-1] == "cancelled" or kinds[-2:] == ["cancelled", "released"]


def test_disks_are_made_changed_and_deleted(client: GpuDev) -> None:
    name, other = (f"disk-{uuid.uuid4().hex[:8]}" for _ in range(2))
    states: list[str] = []
    done = client.disks.create(name, size_gb=2, on_change=lambda operation: states.append(operation.state))
    assert done.state == "done"
    assert set(states) <= {"waiting", "running"}
    client.disks.rename(name, f"{name}-x")
    client.disks.rename(f"{name}-x", name)
    client.disks.snapshot(name)
    assert len(client.disks.snapshots(name)) == 1
    client.disks.clone(name, other)
    assert {disk.disk_name for disk in client.disks.list()} >= {name, other}
    assert {one.kind for one in client.disks.operations(name)} >= {"create", "rename", "snapshot"}
    with pytest.raises(NotFound):
        client.disks.get("elsewhere")
    client.disks.delete(other)
    client.disks.restore(other)
    assert client.disks.get(other).is_deleted is False
    assert client.disks.delete(name, wait=False).kind == "delete"


async def test_the_same_is_awaited_many_at_once(system: System, client: GpuDev) -> None:
    async with AsyncGpuDev(env=system.environment) as concurrent:
        seen: list[str] = []

        async def note(job: JobView) -> None:
            await asyncio.sleep(0)
            seen.append(job.status)

        async def work(number: int) -> str:
            async with concurrent.reserve(gpus=2, disk="none", on_change=note) as server:
                return (await server.run(f"echo {number}")).stdout.strip()

        assert await asyncio.gather(*(work(number) for number in range(5))) == ["0", "1", "2", "3", "4"]
        assert seen.count("active") == 5
        assert await concurrent.jobs.list() == []


async def test_whoever_is_cancelled_releases_what_they_had(system: System, client: GpuDev) -> None:
    async with AsyncGpuDev(env=system.environment) as concurrent, concurrent.reserve(gpus=8, disk="none") as server:
        waiting = asyncio.create_task(concurrent.reserve(gpus=1, disk="none").__aenter__())
        running = asyncio.create_task(server.run("sleep 60"))
        listening = asyncio.create_task(_last_event(concurrent, server.id))

        async def are_both_there() -> bool:
            return len(await concurrent.jobs.list()) == 2

        await eventually_async(are_both_there, every=0.05)
        for task in (waiting, running, listening):
            task.cancel()
        results = await asyncio.gather(waiting, running, listening, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3
        assert [job.job_id for job in await concurrent.jobs.list()] == [server.id]


async def _last_event(client: AsyncGpuDev, job_id: str) -> str:
    last = ""
    async for event in client.jobs.follow(job_id):
        last = event.kind
    return last
