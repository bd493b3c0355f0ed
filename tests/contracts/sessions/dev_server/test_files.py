"""Files over sftp, scp and rsync: served with the person's rights, never with root's."""

import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from support.ssh.dev_server_container import DEV, DevServer
from support.ssh.sshd_process import Completed, children_of, eventually

pytestmark = pytest.mark.slow

AWKWARD_NAME = "ein Name mit 'Zeichen' und ümläuten"


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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sftp(server: DevServer, *commands: str) -> Completed:
    return server.run("sftp", "-b", "-", server.address, stdin="\n".join(commands).encode() + b"\n")


@pytest.mark.parametrize("mode", ["-O", "-s"])
def test_scp_carries_a_tree_there_and_back(server: DevServer, tree: Path, tmp_path: Path, mode: str) -> None:
    there = server.run("scp", mode, "-r", "-p", str(tree), f"{server.address}:")
    assert there.returncode == 0, there.stderr
    arrived = server.home / "tree"
    assert contents(arrived) == contents(tree)
    assert {path.stat().st_uid for path in [arrived, *arrived.rglob("*")]} == {server.uid}
    assert stat.S_IMODE((arrived / "deep" / "program").stat().st_mode) == 0o750
    assert int((arrived / "large").stat().st_mtime) == int((tree / "large").stat().st_mtime)
    back = server.run("scp", mode, "-r", f"{server.address}:tree", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert contents(tmp_path / "back") == contents(tree)


@pytest.mark.parametrize("mode", ["-O", "-s"])
def test_scp_says_what_is_missing(server: DevServer, tmp_path: Path, mode: str) -> None:
    result = server.run("scp", mode, f"{server.address}:nothing", str(tmp_path))
    assert result.returncode != 0
    assert b"No such file" in result.stderr


def test_sftp_does_what_people_type(server: DevServer, tree: Path, tmp_path: Path) -> None:
    result = sftp(
        server,
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
    assert server.inside(server.home).encode() in result.stdout
    work = server.home / "work"
    assert (tmp_path / "fetched").read_bytes() == (tree / "large").read_bytes()
    assert (work / "link").readlink() == Path("renamed")
    assert (work / "hard").stat().st_nlink == 2
    assert stat.S_IMODE((work / "renamed").stat().st_mode) == 0o600
    assert b"-rw-------" in result.stdout
    removed = sftp(server, "rm work/link", "rm work/hard", "rm work/renamed", "rmdir work", "ls")
    assert removed.returncode == 0, removed.stderr
    assert not work.exists()


def test_sftp_renames_over_a_file_that_is_there(server: DevServer) -> None:
    (server.home / "old").write_text("old")
    (server.home / "new").write_text("new")
    assert sftp(server, "rename new old").returncode == 0
    assert (server.home / "old").read_text() == "new"


def test_sftp_resumes_a_broken_transfer(server: DevServer, tree: Path) -> None:
    data = (tree / "large").read_bytes()
    (server.home / "large").write_bytes(data[:2_000_000])
    os.chown(server.home / "large", server.uid, -1)
    assert sftp(server, f"reput {tree / 'large'} large").returncode == 0
    assert (server.home / "large").read_bytes() == data


def test_sftp_may_do_what_the_person_may_and_no_more(container: DevServer, tmp_path: Path) -> None:
    secret = container.root / "root" / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    assert sftp(container, f"get /root/secret {tmp_path}").returncode != 0
    assert sftp(container, f"get /gpudev/config/host_key {tmp_path}").returncode != 0
    assert sftp(container, "put /etc/hosts /etc/mine").returncode != 0
    assert not (container.root / "etc" / "mine").exists()
    assert sftp(container, "put /etc/hosts /tmp/mine").returncode == 0
    assert (container.root / "tmp" / "mine").stat().st_uid == DEV


def test_a_file_that_blocks_sftp_blocks_nobody_else_and_lets_go_with_the_client(
    server: DevServer, tmp_path: Path
) -> None:
    os.mkfifo(server.home / "fifo")
    (server.home / "fifo").chmod(0o666)
    stuck = subprocess.Popen(
        ["sftp", *server.settings(), "-P", str(server.port), "-b", "-", server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert stuck.stdin is not None
    stuck.stdin.write(f"put /etc/hosts fifo\nget fifo {tmp_path / 'never'}\n".encode())
    stuck.stdin.flush()
    time.sleep(0.5)  # long enough to be stuck; there is nothing to see from outside
    assert server.ssh("echo alive").stdout == b"alive\n"
    assert children_of(server.pid) != []
    os.killpg(stuck.pid, signal.SIGKILL)  # with the ssh it has started
    stuck.wait()
    stuck.stdin.close()
    eventually(lambda: children_of(server.pid) == [])


def test_rsync_mirrors_a_tree_and_sends_only_what_changed(server: DevServer, tree: Path, tmp_path: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("NOT TESTED: rsync is not installed; `make test` installs what it can, here it could not")
    if server.ssh("command -v rsync").returncode != 0:
        pytest.skip("NOT TESTED: rsync is not where the dev server could find it")
    shell = " ".join(["ssh", *server.settings(), "-p", str(server.port)])

    def rsync(*arguments: str) -> str:
        command = ["rsync", "-a", "--delete", "--stats", "-e", shell, *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout

    rsync(f"{tree}/", f"{server.address}:mirror/")
    assert contents(server.home / "mirror") == contents(tree)
    (tree / "empty").unlink()
    (tree / "large").write_bytes((tree / "large").read_bytes() + b"more")
    second = rsync(f"{tree}/", f"{server.address}:mirror/")
    assert contents(server.home / "mirror") == contents(tree)
    assert "Number of regular files transferred: 1\n" in second
    rsync(f"{server.address}:mirror/", str(tmp_path / "back"))
    assert contents(tmp_path / "back") == contents(tree)


def test_other_subsystems_are_refused(server: DevServer) -> None:
    assert b"subsystem request failed" in server.ssh("netconf", options=("-s",)).stderr
