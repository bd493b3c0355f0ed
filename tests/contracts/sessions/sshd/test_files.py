"""Files over sftp, scp and rsync. Everything about sftp runs against asyncssh's server and, where there is one,
against the system's."""

import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from gpudev.adapters.local.sshd.channel_session import find_sftp_server
from gpudev.adapters.local.sshd.sshd_config import USUAL_SFTP_SERVERS
from support.ssh.sshd_process import Server, StartServer, children_of, eventually

pytestmark = pytest.mark.slow

AWKWARD_NAME = "ein Name mit 'Zeichen' und ümläuten"


@pytest.fixture(params=["asyncssh", "system"])
def sftp_server(request: pytest.FixtureRequest, start_server: StartServer) -> Server:
    if request.param == "asyncssh":
        return start_server(sftp_servers=())
    if find_sftp_server(USUAL_SFTP_SERVERS) is None:
        pytest.skip(f"this machine has no sftp-server of its own (looked for {', '.join(USUAL_SFTP_SERVERS)})")
    return start_server()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files of several kinds: large, empty, nested, executable, linked, awkwardly named."""
    tree = tmp_path / "tree"
    (tree / "deep" / "deeper").mkdir(parents=True)
    (tree / "large").write_bytes(os.urandom(5_000_001))
    (tree / "empty").touch()
    (tree / "deep" / "deeper" / AWKWARD_NAME).write_text("awkward")
    (tree / "deep" / "program").write_text("#!/bin/sh\n")
    (tree / "deep" / "program").chmod(0o750)
    return tree


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _sftp(server: Server, *commands: str) -> subprocess.CompletedProcess[bytes]:
    return server.run("sftp", "-b", "-", server.address, stdin="\n".join(commands).encode() + b"\n")


@pytest.mark.parametrize("mode", ["-O", "-s"])
def test_scp_carries_a_tree_there_and_back(sftp_server: Server, tree: Path, tmp_path: Path, mode: str) -> None:
    there = sftp_server.run("scp", mode, "-r", "-p", str(tree), f"{sftp_server.address}:")
    assert there.returncode == 0, there.stderr
    arrived = sftp_server.home / "tree"
    assert _contents(arrived) == _contents(tree)
    assert stat.S_IMODE((arrived / "deep" / "program").stat().st_mode) == 0o750
    assert int((arrived / "large").stat().st_mtime) == int((tree / "large").stat().st_mtime)
    back = sftp_server.run("scp", mode, "-r", f"{sftp_server.address}:tree", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert _contents(tmp_path / "back") == _contents(tree)


@pytest.mark.parametrize("mode", ["-O", "-s"])
def test_scp_says_what_is_missing(sftp_server: Server, tmp_path: Path, mode: str) -> None:
    result = sftp_server.run("scp", mode, f"{sftp_server.address}:nothing", str(tmp_path))
    assert result.returncode != 0
    assert b"No such file" in result.stderr


def test_sftp_does_what_people_type(sftp_server: Server, tree: Path, tmp_path: Path) -> None:
    result = _sftp(
        sftp_server,
        "pwd",
        "mkdir work",
        "cd work",
        f"put {tree / 'large'} copy",
        "rename copy renamed",
        "chmod 600 renamed",
        "symlink renamed link",
        "ln renamed hard",
        "ls -l",
        f"get link {tmp_path / 'fetched'}",
        "df",
    )
    assert result.returncode == 0, result.stderr
    assert str(sftp_server.home).encode() in result.stdout
    work = sftp_server.home / "work"
    assert (tmp_path / "fetched").read_bytes() == (tree / "large").read_bytes()
    assert (work / "link").readlink() == Path("renamed")
    assert (work / "hard").stat().st_nlink == 2
    assert stat.S_IMODE((work / "renamed").stat().st_mode) == 0o600
    assert b"-rw-------" in result.stdout
    removed = _sftp(sftp_server, "rm work/link", "rm work/hard", "rm work/renamed", "rmdir work", "ls")
    assert removed.returncode == 0, removed.stderr
    assert not work.exists()


def test_sftp_resumes_a_broken_transfer(sftp_server: Server, tree: Path) -> None:
    data = (tree / "large").read_bytes()
    (sftp_server.home / "large").write_bytes(data[:2_000_000])
    assert _sftp(sftp_server, f"reput {tree / 'large'} large").returncode == 0
    assert (sftp_server.home / "large").read_bytes() == data


def test_a_file_that_blocks_sftp_blocks_nobody_else_and_lets_go_with_the_client(
    sftp_server: Server, tmp_path: Path
) -> None:
    os.mkfifo(sftp_server.home / "fifo")
    stuck = subprocess.Popen(
        ["sftp", *sftp_server.settings(), "-P", str(sftp_server.port), "-b", "-", sftp_server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert stuck.stdin is not None
    stuck.stdin.write(f"put /etc/hosts fifo\nget fifo {tmp_path / 'never'}\n".encode())
    stuck.stdin.flush()
    time.sleep(0.5)  # long enough to be stuck; there is nothing to see from outside
    assert sftp_server.ssh("echo alive").stdout == b"alive\n"
    assert children_of(sftp_server.pid) != []
    os.killpg(stuck.pid, signal.SIGKILL)  # with the ssh it has started
    stuck.wait()
    stuck.stdin.close()
    eventually(lambda: children_of(sftp_server.pid) == [])


def test_rsync_mirrors_a_tree_and_sends_only_what_changed(server: Server, tree: Path, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed; `make test` installs what it can, here it could not")
    shell = " ".join(["ssh", *server.settings(), "-p", str(server.port)])

    def rsync(*arguments: str) -> str:
        command = ["rsync", "-a", "--delete", "--stats", "-e", shell, *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout

    rsync(f"{tree}/", f"{server.address}:mirror/")
    assert _contents(server.home / "mirror") == _contents(tree)
    (tree / "empty").unlink()
    (tree / "large").write_bytes((tree / "large").read_bytes() + b"more")
    second = rsync(f"{tree}/", f"{server.address}:mirror/")
    assert _contents(server.home / "mirror") == _contents(tree)
    assert "Number of regular files transferred: 1\n" in second
    rsync(f"{server.address}:mirror/", str(tmp_path / "back"))
    assert _contents(tmp_path / "back") == _contents(tree)


def test_the_first_sftp_server_that_exists_is_used(start_server: StartServer, tmp_path: Path) -> None:
    program = tmp_path / "sftp-server"
    program.write_text("#!/bin/sh\necho served from $PWD for $GPU_DEV_TEST; cat\n")
    program.chmod(0o755)
    server = start_server(sftp_servers=("/nowhere/sftp-server", str(program)))
    result = server.ssh("sftp", options=("-s",), stdin=b"input")
    assert result.stdout.decode() == f"served from {server.home} for yes\ninput"


def test_other_subsystems_are_refused(server: Server) -> None:
    assert b"subsystem request failed" in server.ssh("netconf", options=("-s",)).stderr
