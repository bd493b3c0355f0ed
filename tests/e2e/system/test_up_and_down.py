"""`up` and `down`, with every real part."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from gpudev.adapters.local.machine.processes import identify, is_alive
from gpudev.embedded import supervised_processes
from gpudev.embedded.postgres import EmbeddedPostgres
from gpudev.embedded.supervised_processes import wait_until
from support.ports import free_port
from support.system.machine import Machine, a_machine

pytestmark = pytest.mark.slow


def answers(url: str, api_key: str | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def stored_key(machine: Machine, url: str) -> str:
    key: str = json.loads((machine.person / ".gpu-dev" / "credentials").read_text())[url]["api_key"]
    return key


def kill_part(machine: Machine, name: str) -> None:
    process = supervised_processes.find_process(machine.layout.pid_file(name))
    assert process is not None, f"{name} does not run"
    os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(process), 10)


def test_one_life_from_up_to_down(machine: Machine) -> None:
    up = machine.run("up")
    assert up.returncode == 0, up.stdout + up.stderr
    for step in ("PostgreSQL", "Database schema", "Processor", "Proxy", "API", "Ready", "Your key", "Nodes"):
        assert f"  {step} " in up.stdout
    described = json.loads(machine.layout.system_file.read_text())
    url = described["api_url"]
    assert f"{url}/docs" in up.stdout
    assert described["isolation"] in up.stdout
    if any(node["simulated"] for node in described["nodes"]):
        assert "SIMULATED" in up.stdout
    assert {name: psutil.pid_exists(pid) for name, pid in described["pids"].items()} == {
        "supervisor": True,
        "postgres": True,
        "processor": True,
        "proxy": True,
        "api": True,
    }
    assert answers(f"{url}/v1/jobs") == 401
    assert answers(f"{url}/v1/jobs", stored_key(machine, url)) == 200

    again = machine.up()
    assert again["already_running"]
    assert again["pids"] == described["pids"]
    assert "already running" in machine.run("up").stdout

    down = machine.run("down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert str(machine.layout.home) in down.stdout
    assert machine.processes() == []
    assert not machine.layout.system_file.exists()
    assert answers(f"{url}/health/live") == 0
    assert list(machine.layout.run.glob("*.sock")) == []

    nothing = machine.run("down")
    assert nothing.returncode == 0
    assert "Nothing is running" in nothing.stdout


@dataclass
class Started:
    machine: Machine
    taken_port: int
    said: str


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """One for those who look at what `up` has made and leave it running: started by somebody who has a key of another
    system, while another program has the port."""
    with socket.socket() as other, a_machine(tmp_path_factory.mktemp("started")) as machine:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        machine.variables["GPU_DEV_API_PORT"] = str(taken)
        folder = machine.person / ".gpu-dev"
        folder.mkdir(mode=0o700)
        (folder / "credentials").write_text(json.dumps({"https://elsewhere.example": {"api_key": "kept"}}))
        (folder / "credentials").chmod(0o600)
        up = machine.run("up")
        assert up.returncode == 0, up.stdout + up.stderr
        yield Started(machine, taken, up.stdout)


def test_a_taken_port_is_stepped_over_and_it_says_so(started: Started) -> None:
    assert f"Port {started.taken_port} is in use by another program" in started.said
    assert started.machine.up()["api_url"] != f"http://127.0.0.1:{started.taken_port}"


def test_the_owner_gets_a_key_and_an_ssh_key_nobody_else_can_read(started: Started) -> None:
    machine = started.machine
    folder = machine.person / ".gpu-dev"
    url = json.loads(machine.layout.system_file.read_text())["api_url"]
    entries = json.loads((folder / "credentials").read_text())
    assert entries["https://elsewhere.example"] == {"api_key": "kept"}
    assert stat.S_IMODE((folder / "credentials").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "id_ed25519").stat().st_mode) == 0o600
    assert (folder / "id_ed25519.pub").read_text().startswith("ssh-ed25519 ")
    assert not (machine.person / ".ssh").exists()

    key, ssh_key = stored_key(machine, url), (folder / "id_ed25519").read_bytes()
    machine.up()
    assert stored_key(machine, url) == key, "a key that works is kept"
    entries[url]["api_key"] = "worn out"
    (folder / "credentials").write_text(json.dumps(entries))
    machine.up()
    assert answers(f"{url}/v1/jobs", stored_key(machine, url)) == 200, "one that does not is replaced"
    assert (folder / "id_ed25519").read_bytes() == ssh_key


def test_a_killed_part_is_back_within_seconds(started: Started) -> None:
    machine = started.machine
    url = machine.up()["api_url"]
    for part in ("api", "processor", "postgres"):
        kill_part(machine, part)
        assert wait_until(
            lambda part=part: supervised_processes.find_process(machine.layout.pid_file(part)) is not None, 20
        ), part  # type: ignore[misc]
        assert wait_until(lambda: answers(f"{url}/v1/jobs", stored_key(machine, url)) == 200, 20), part


def test_a_system_is_found_whose_pid_file_and_description_are_damaged(started: Started) -> None:
    layout = started.machine.layout
    url = json.loads(layout.system_file.read_text())["api_url"]
    started.machine.variables["GPU_DEV_API_PORT"] = url.rpartition(":")[2]  # nothing else says so any more
    word = layout.pid_file("supervisor").read_text()
    try:
        layout.pid_file("supervisor").write_text("half")
        layout.system_file.write_text("{")
        assert started.machine.up()["already_running"]
        assert json.loads(layout.system_file.read_text())["api_url"] == url
    finally:
        layout.pid_file("supervisor").write_text(word)


def test_it_is_said_that_another_version_runs(started: Started) -> None:
    layout = started.machine.layout
    described = layout.system_file.read_text()
    assert "another version" not in started.machine.run("up").stdout
    try:
        layout.system_file.write_text(json.dumps({**json.loads(described), "schema": "0000_older.sql"}))
        assert (
            "It was started by another version. To switch to this one: `gpu-dev down`"
            in started.machine.run("up").stdout
        )
    finally:
        layout.system_file.write_text(described)


def test_after_the_supervisor_was_killed_up_replaces_what_it_left_and_down_leaves_nothing(machine: Machine) -> None:
    first = machine.up()
    kill_part(machine, "supervisor")
    assert answers(f"{first['api_url']}/health/live") == 200, "its parts go on without it"
    second = machine.up()
    assert not second["already_running"]
    assert second["api_url"] == first["api_url"]
    left = set(first["pids"].values()) & {process.pid for process in machine.processes()}
    assert left == set(), "nothing runs twice"

    kill_part(machine, "supervisor")
    kill_part(machine, "proxy")
    assert machine.run("down").returncode == 0
    assert machine.processes() == []
    assert list(machine.layout.run.glob("*.sock")) == []


def test_a_taken_port_that_was_asked_for_is_refused(machine: Machine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        up = machine.run("up", "--port", taken)
    assert up.returncode == 1
    assert f"port {taken} is in use" in up.stdout
    assert machine.processes() == []


def test_a_step_that_fails_is_named_with_its_reason_and_nothing_stays(machine: Machine) -> None:
    machine.layout.make_folders()
    EmbeddedPostgres(machine.layout.postgres_data, fast=True).initialise()
    (machine.layout.postgres_data / "PG_VERSION").write_text("9\n")
    up = machine.run("up")
    assert up.returncode == 1
    assert "PostgreSQL failed" in up.stdout
    assert "incompatible with server" in up.stdout, "the last lines of its log are shown"
    assert "What to do:" in up.stdout
    assert machine.processes() == []
    assert not machine.layout.system_file.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [("not toml [", "invalid nodes file"), ("[[node]]\nname = 'a'\nwings = 2\n", "no field named 'wings'")],
)
def test_a_nodes_file_that_is_wrong_is_refused_before_anything_starts(machine: Machine, text: str, reason: str) -> None:
    file = machine.root / "nodes.toml"
    file.write_text(text)
    up = machine.run("up", "--nodes", str(file))
    assert up.returncode == 1
    assert reason in up.stdout
    assert not machine.layout.postgres_data.exists()
    assert machine.processes() == []


def test_a_nodes_file_describes_what_there_is_also_next_time_unless_told_to_detect(machine: Machine) -> None:
    file = machine.root / "nodes.toml"
    file.write_text('[[node]]\nname = "left"\ngpu_type = "a100"\ngpus = 4\n')
    nodes = machine.up("--nodes", str(file))["nodes"]
    assert [(node["name"], node["gpu_type"], node["total_gpus"]) for node in nodes] == [("left", "a100", 4)]
    machine.run("down")
    assert [node["name"] for node in machine.up()["nodes"]] == ["left"]
    machine.run("down")
    assert "left" not in [node["name"] for node in machine.up("--nodes", "detect")["nodes"]]


def test_an_interrupted_up_leaves_nothing(machine: Machine) -> None:
    process = subprocess.Popen(
        machine.command("up"),
        env=machine.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: machine.layout.pid_file("supervisor").exists(), 30)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in out
    assert machine.processes() == []


def test_two_ups_at_once_make_one_system_and_use_no_database_of_the_environment(machine: Machine) -> None:
    machine.variables |= {"POSTGRES_HOST": "203.0.113.1", "POSTGRES_PORT": str(free_port())}
    both = [
        subprocess.Popen(machine.command("up", "--json"), env=machine.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers_given = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers(f"{answers_given[0]['api_url']}/health/ready") == 200
    assert sorted(answer["already_running"] for answer in answers_given) == [False, True]
    assert answers_given[0]["pids"] == answers_given[1]["pids"]


@contextmanager
def up_in_the_foreground(machine: Machine) -> Iterator["subprocess.Popen[str]"]:
    """As soon as it has said that all runs, which is a moment before it has settled down to stay."""
    command = machine.command("up", "--foreground", "--timeout", "110")
    with subprocess.Popen(command, env=machine.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert wait_until(lambda: machine.layout.system_file.exists() or process.poll() is not None, 120)
            assert process.poll() is None, process.communicate()[0]
            yield process
        finally:
            process.kill()


def test_in_the_foreground_it_stays_and_a_signal_takes_the_control_plane_down(machine: Machine) -> None:
    with up_in_the_foreground(machine) as process:
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert machine.processes() == []


def test_in_the_foreground_a_supervisor_that_dies_is_an_error_for_the_service_manager(machine: Machine) -> None:
    with up_in_the_foreground(machine) as process:
        kill_part(machine, "supervisor")
        process.communicate(timeout=60)
    assert process.returncode == 1


def test_a_home_that_cannot_be_used_is_named(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    machine.variables["GPU_DEV_HOME"] = str(tmp_path / "file" / "state")
    up = machine.run("up")
    assert up.returncode == 1
    assert f"Using {tmp_path / 'file' / 'state'} failed" in up.stdout
    assert "GPU_DEV_HOME" in up.stdout

    machine.variables["GPU_DEV_HOME"] = str(tmp_path / "state")
    (tmp_path / "state" / "nodes.json").mkdir(parents=True)  # as unreadable as somebody else's, for root too
    up = machine.run("up")
    assert up.returncode == 1
    assert f"Using {tmp_path / 'state'} failed" in up.stdout


def gpu_dev(machine: Machine, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpudev.cli", *arguments],
        env=machine.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def server_processes(machine: Machine) -> set[int]:
    """The first process of each dev server, by what the local cluster wrote down."""
    papers = machine.layout.home.glob("servers/*/members/*/process.json")
    return {pid for paper in papers if identify(pid := json.loads(paper.read_text())["pid"]) is not None}


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client")
def test_dev_servers_end_with_down_come_back_with_up_and_may_be_kept(machine: Machine) -> None:
    machine.up()
    made = gpu_dev(machine, "reserve", "--gpus", "1", "--hours", "1", "--yes", "--json")
    assert made.returncode == 0, made.stderr
    first = json.loads(made.stdout)
    hello = ("connect", first["reservation_id"], "--", "echo hello > ~/said; cat ~/said")
    assert gpu_dev(machine, *hello).stdout == "hello\n"

    assert json.loads(machine.run("down", "--json").stdout)["servers_stopped"] == 1
    assert server_processes(machine) == set()

    machine.up()
    back = gpu_dev(machine, "connect", first["reservation_id"], "--", "cat ~/said")
    assert back.stdout == "hello\n", back.stderr
    status = json.loads(gpu_dev(machine, "status", first["reservation_id"], "--json").stdout)
    assert status["ssh_host_key"] == first["ssh_host_key"]

    kept = server_processes(machine)
    assert kept
    assert machine.run("down", "--keep-servers").returncode == 0
    assert server_processes(machine) == kept
    machine.up()
    assert gpu_dev(machine, *hello).stdout == "hello\n"
    assert server_processes(machine) == kept, "found again, not started again"

    # A copy of the folder, as a backup of a running system makes it, names the processes of this one.
    copy = Machine(machine.root / "copy")
    shutil.copytree(
        machine.layout.home, copy.layout.home, ignore=shutil.ignore_patterns("postgres", "tmp", "var-tmp", "*.sock")
    )
    nothing = json.loads(copy.run("down", "--json").stdout)
    assert (nothing["stopped"], nothing["servers_stopped"]) == ([], 0)
    assert server_processes(machine) == kept
    assert machine.up()["already_running"]
