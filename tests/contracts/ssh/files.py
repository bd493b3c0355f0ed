"""scp, sftp and rsync."""

import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from contracts.ssh.servers import SshServers
from support.polling import eventually
from support.ssh.ssh_server import (
    SshServer,
    children_of,
)

AWKWARD_NAME = "ein Name mit 'Zeichen' und ümläuten"


class FileContract(SshServers):
    """Files over sftp, scp and rsync."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """Files of several kinds: large, empty, nested, executable, linked, awkwardly named."""
        tree = tmp_path / "tree"
        (tree / "deep" / "deeper").mkdir(parents=True)
        (tree / "large").write_bytes(os.urandom(5_000_001))
        (tree / "empty").touch()
        (tree / "deep" / "deeper" / AWKWARD_NAME).write_text("awkward")
        (tree / "deep" / "program").write_text("#!/bin/sh\n")
        (tree / "deep" / "program").chmod(0o750)
        return tree

    @pytest.mark.parametrize("mode", ["-O", "-s"])
    def test_scp_carries_a_tree_there_and_back(self, ssh: SshServer, tree: Path, tmp_path: Path, mode: str) -> None:
        there = ssh.run("scp", mode, "-r", "-p", str(tree), f"{ssh.address}:")
        assert there.returncode == 0, there.stderr
        arrived = ssh.home / "tree"
        assert _contents(arrived) == _contents(tree)
        assert {path.stat().st_uid for path in [arrived, *arrived.rglob("*")]} == {ssh.uid}
        assert stat.S_IMODE((arrived / "deep" / "program").stat().st_mode) == 0o750
        assert int((arrived / "large").stat().st_mtime) == int((tree / "large").stat().st_mtime)
        back = ssh.run("scp", mode, "-r", f"{ssh.address}:tree", str(tmp_path / "back"))
        assert back.returncode == 0, back.stderr
        assert _contents(tmp_path / "back") == _contents(tree)

    @pytest.mark.parametrize("mode", ["-O", "-s"])
    def test_scp_says_what_is_missing(self, ssh: SshServer, tmp_path: Path, mode: str) -> None:
        result = ssh.run("scp", mode, f"{ssh.address}:nothing", str(tmp_path))
        assert result.returncode != 0
        assert b"No such file" in result.stderr

    def test_sftp_does_what_people_type(self, ssh: SshServer, tree: Path, tmp_path: Path) -> None:
        result = ssh.sftp(
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
        assert ssh.inside(ssh.home).encode() in result.stdout
        work = ssh.home / "work"
        assert (tmp_path / "fetched").read_bytes() == (tree / "large").read_bytes()
        assert (work / "link").readlink() == Path("renamed")
        assert (work / "hard").stat().st_nlink == 2
        assert stat.S_IMODE((work / "renamed").stat().st_mode) == 0o600
        assert b"-rw-------" in result.stdout
        removed = ssh.sftp("rm work/link", "rm work/hard", "rm work/renamed", "rmdir work", "ls")
        assert removed.returncode == 0, removed.stderr
        assert not work.exists()

    def test_sftp_renames_over_a_file_that_is_there(self, ssh: SshServer) -> None:
        (ssh.home / "old").write_text("old")
        (ssh.home / "new").write_text("new")
        assert ssh.sftp("rename new old").returncode == 0
        assert (ssh.home / "old").read_text() == "new"

    def test_sftp_resumes_a_broken_transfer(self, ssh: SshServer, tree: Path) -> None:
        data = (tree / "large").read_bytes()
        (ssh.home / "large").write_bytes(data[:2_000_000])
        os.chown(ssh.home / "large", ssh.uid, -1)
        assert ssh.sftp(f"reput {tree / 'large'} large").returncode == 0
        assert (ssh.home / "large").read_bytes() == data

    def test_a_file_that_blocks_sftp_blocks_nobody_else_and_lets_go_with_the_client(
        self, ssh: SshServer, tmp_path: Path
    ) -> None:
        os.mkfifo(ssh.home / "fifo")
        (ssh.home / "fifo").chmod(0o666)
        stuck = subprocess.Popen(
            ["sftp", *ssh.settings(), "-P", str(ssh.port), "-b", "-", ssh.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert stuck.stdin is not None
        stuck.stdin.write(f"put /etc/hosts fifo\nget fifo {tmp_path / 'never'}\n".encode())
        stuck.stdin.flush()
        time.sleep(0.5)  # long enough to be stuck; there is nothing to see from outside
        assert ssh.ssh("echo alive").stdout == b"alive\n"
        assert children_of(ssh.pid) != []
        os.killpg(stuck.pid, signal.SIGKILL)  # with the ssh it has started
        stuck.wait()
        stuck.stdin.close()
        eventually(lambda: children_of(ssh.pid) == [])

    def test_rsync_mirrors_a_tree_and_sends_only_what_changed(self, ssh: SshServer, tree: Path, tmp_path: Path) -> None:
        if shutil.which("rsync") is None:
            pytest.skip("NOT TESTED: rsync is not installed; `make test` installs what it can, here it could not")
        if ssh.ssh("command -v rsync").returncode != 0:
            pytest.skip("NOT TESTED: rsync is not where the dev server could find it")
        shell = " ".join(["ssh", *ssh.settings(), "-p", str(ssh.port)])

        def rsync(*arguments: str) -> str:
            command = ["rsync", "-a", "--delete", "--stats", "-e", shell, *arguments]
            return subprocess.run(command, capture_output=True, check=True, timeout=60, text=True).stdout

        rsync(f"{tree}/", f"{ssh.address}:mirror/")
        assert _contents(ssh.home / "mirror") == _contents(tree)
        (tree / "empty").unlink()
        (tree / "large").write_bytes((tree / "large").read_bytes() + b"more")
        second = rsync(f"{tree}/", f"{ssh.address}:mirror/")
        assert _contents(ssh.home / "mirror") == _contents(tree)
        assert "Number of regular files transferred: 1\n" in second
        rsync(f"{ssh.address}:mirror/", str(tmp_path / "back"))
        assert _contents(tmp_path / "back") == _contents(tree)

    def test_other_subsystems_are_refused(self, ssh: SshServer) -> None:
        assert b"subsystem request failed" in ssh.ssh("netconf", options=("-s",)).stderr


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
