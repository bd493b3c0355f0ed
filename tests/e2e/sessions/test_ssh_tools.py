"""What people do in a dev server with the system's own ssh tools."""

import http.client
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.polling import eventually
from support.ports import free_port
from support.system.embedded_system import System
from support.terminal import Terminal

pytestmark = pytest.mark.slow
Job = dict[str, Any]


@pytest.fixture(scope="module")
def job(system: System) -> Iterator[Job]:
    reserved = system.ask("reserve", "--gpus", "1", "--hours", "1", "--disk", "none", "--yes")
    yield reserved
    system.run("cancel", reserved["job_id"], "--yes")


@pytest.mark.parametrize("legacy", [[], ["-O"]], ids=["sftp", "scp"])
def test_scp_carries_a_file_there_and_back(system: System, job: Job, tmp_path: Path, legacy: list[str]) -> None:
    sent, returned = tmp_path / "sent", tmp_path / "returned"
    sent.write_bytes(os.urandom(3_000_000))
    options = [*system.ssh_options(job), "-P", str(job["node_port"]), *legacy]
    there = f"dev@{job['node_ip']}:carried"
    subprocess.run(["scp", "-q", *options, str(sent), there], check=True, timeout=60)
    subprocess.run(["scp", "-q", *options, there, str(returned)], check=True, timeout=60)
    assert returned.read_bytes() == sent.read_bytes()


def test_rsync_copies_a_folder_and_then_only_what_changed(system: System, job: Job, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("NOT TESTED: there is no rsync on this machine (make test installs it where it can)")
    if subprocess.run([*system.ssh(job), "command -v rsync"], check=False, stdout=subprocess.DEVNULL).returncode != 0:
        pytest.skip("NOT TESTED: rsync is not installed in the system, so a dev server has none either")
    for number in range(50):
        (tmp_path / f"file-{number}").write_text(str(number))
    shell = " ".join(system.ssh(job)[:-1])
    command = ["rsync", "-a", "--stats", "-e", shell, f"{tmp_path}/", f"dev@{job['node_ip']}:synced/"]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    (tmp_path / "file-7").write_text("changed")
    again = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert "Number of regular files transferred: 1\n" in again.stdout
    said = subprocess.run([*system.ssh(job), "cat synced/file-7"], check=True, capture_output=True, text=True)
    assert said.stdout == "changed"


def test_a_forwarded_port_reaches_a_server_in_there(system: System, job: Job) -> None:
    inside, outside = free_port(), free_port()
    serve = f"exec python3 -m http.server {inside} --bind 127.0.0.1 -d /workspace"
    forward = f"{outside}:127.0.0.1:{inside}"
    tunnel = subprocess.Popen([*system.ssh(job, "-L", forward, "-o", "ExitOnForwardFailure=yes"), serve],
                              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    def fetch() -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", outside, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    with tunnel:
        try:
            assert eventually(fetch, "nothing came through the forwarded port") == 200
        finally:
            tunnel.terminate()


def answer_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"from outside\n")


def test_a_port_forwarded_the_other_way_is_reached_from_in_there(system: System, job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answering = threading.Thread(target=answer_once, args=(listener,), daemon=True)
        answering.start()
        remote = free_port()
        read = f"exec 3<>/dev/tcp/127.0.0.1/{remote} && head -1 <&3"
        done = subprocess.run(
            [*system.ssh(job, "-R", f"{remote}:127.0.0.1:{port}"), f"bash -c '{read}'"],
            capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert done.stdout == "from outside\n"


def test_a_full_screen_program_draws_and_follows_a_resize(system: System, job: Job) -> None:
    if shutil.which("less") is None:
        pytest.skip("NOT TESTED: there is no less on this machine (make test installs it as root)")
    with Terminal(system.ssh(job, "-tt"), rows=24, columns=80) as terminal:
        terminal.wait_for("$")
        terminal.type("seq 1 500 > /tmp/numbers; less /tmp/numbers\n")
        terminal.wait_for("\n23")
        assert terminal.lines()[0] == "1"
        terminal.resize(rows=40, columns=100)
        terminal.wait_for("\n39")
        terminal.type("G")
        terminal.wait_for("500")
        terminal.type("q")
        terminal.type("stty size; exit 7\n")
        terminal.wait_for("40 100")
        assert terminal.end() == 7


def test_a_warning_reaches_open_terminals(system: System) -> None:
    brief = system.ask("reserve", "--gpus", "1", "--hours", "0.0835", "--disk", "none", "--yes")
    with Terminal(system.ssh(brief, "-tt"), rows=24, columns=100) as terminal:
        terminal.wait_for("in 5 minutes", seconds=20)
    system.run("cancel", brief["job_id"], "--yes")


def test_the_agent_is_forwarded(system: System, job: Job, tmp_path: Path) -> None:
    started = subprocess.run(["ssh-agent", "-a", str(tmp_path / "agent")], capture_output=True, text=True, check=True)
    pid = next(part.split("=")[1] for part in started.stdout.split(";") if part.strip().startswith("SSH_AGENT_PID"))
    environment = {**os.environ, "SSH_AUTH_SOCK": str(tmp_path / "agent"), "SSH_AGENT_PID": pid}
    try:
        key = system.home / ".gpu-dev" / "id_ed25519"
        subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, stderr=subprocess.DEVNULL)
        done = subprocess.run(
            [*system.ssh(job, "-A"), "ssh-add -l"], env=environment, capture_output=True, text=True, check=True
        )
        assert "ED25519" in done.stdout
    finally:
        subprocess.run(["ssh-agent", "-k"], env=environment, check=False, stdout=subprocess.DEVNULL)
