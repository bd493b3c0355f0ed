"""Which files of a folder go to a dev server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpudev.sdk.errors import LocalError
from gpudev.sdk.remote import upload
from gpudev.sdk.remote.upload import default_target, list_files, list_folders_without_files


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_without_a_repository_the_gitignore_holds_all_the_same(tmp_path: Path) -> None:
    folder = fill(tmp_path / "plain", "a", "b.log", "sub/c", "sub/d.tmp")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "sub" / ".gitignore").write_text("*.tmp\n")
    assert list_files(folder) == [b".gitignore", b"a", b"sub/.gitignore", b"sub/c"]


def test_of_a_repository_go_what_is_tracked_and_what_is_new_but_nothing_of_git_itself(tmp_path: Path) -> None:
    folder = fill(tmp_path / "repository", "tracked", "deleted", "kept.log", "ignored.log")
    git(tmp_path, "init", "-q", str(folder))
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", "-f", "tracked", "deleted", "kept.log")
    (folder / "deleted").unlink()
    fill(folder, "new", "with\nnewline", "ünïcode")
    found = list_files(folder)
    assert found == sorted([b".gitignore", b"kept.log", b"new", b"tracked", b"with\nnewline", "ünïcode".encode()])


def test_a_part_of_a_repository_goes_alone_and_an_ignored_folder_is_not_empty(tmp_path: Path) -> None:
    folder = fill(tmp_path / "repository", "outside", "part/inside", "build/made")
    git(tmp_path, "init", "-q", str(folder))
    (folder / ".gitignore").write_text("/build/\n")
    assert list_files(folder / "part") == [b"inside"]
    assert list_files(folder / "build") == [b"made"]


def test_a_repository_within_the_folder_is_read_by_its_own_rules(tmp_path: Path) -> None:
    folder = fill(tmp_path / "outer", "a", "inner/b", "inner/c.ckpt", "module/d", "module/e.log", "bare/f")
    for name in ("inner", "module"):
        git(tmp_path, "init", "-q", str(folder / name))
    (folder / "inner" / ".gitignore").write_text("*.ckpt\n")
    (folder / "module" / ".gitignore").write_text("*.log\n")
    git(tmp_path, "init", "-q", str(folder))
    git(folder / "module", "add", "d")
    git(folder / "module", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a")
    git(folder, "add", "module")
    assert list_files(folder) == [b"a", b"bare/f", b"inner/.gitignore", b"inner/b", b"module/.gitignore", b"module/d"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_folders_that_hold_nothing_go_too_unless_they_are_ignored(tmp_path: Path, is_repository: bool) -> None:
    folder = fill(tmp_path / "here", "a", "sub/b", "out/model.ckpt", "build/made", "inner/.git/HEAD", "inner/c")
    for name in ("empty/deep", "sub/runs", "build/logs", "sub/tmp", "inner/none", "spa ce\n"):
        (folder / name).mkdir(parents=True)
    (folder / "link").symlink_to("empty")
    (folder / ".gitignore").write_text("*.ckpt\n/build/\n")
    (folder / "sub" / ".gitignore").write_text("tmp/\n")
    if is_repository:
        git(tmp_path, "init", "-q", str(folder))
        git(folder, "add", "a")
    assert list_folders_without_files(folder, list_files(folder)) == [
        b"empty",
        b"empty/deep",
        b"out",
        b"spa ce\n",
        b"sub/runs",
    ]


def test_without_git_every_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "plain", "a", ".git/HEAD")
    (folder / "empty" / "deep").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_folders_without_files(folder, list_files(folder)) == [b"empty", b"empty/deep"]


def test_without_git_a_folder_with_rules_is_refused_rather_than_copied_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / "plain", "a", "sub/secret", ".git/HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list_files(folder) == [b"a", b"sub/secret"]
    (folder / "sub" / ".gitignore").write_text("secret\n")
    with pytest.raises(LocalError, match="git is required"):
        list_files(folder)


def test_settings_of_a_hook_do_not_lead_astray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "here", "a")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert list_files(folder) == [b"a"]


@pytest.mark.parametrize(
    ("name", "target"), [("proj", "proj"), ("my project", "my-project"), ("..x", "x"), ("$(id)", "id"), ("ü", "files")]
)
def test_the_folder_there_has_a_name_that_every_shell_reads_alike(name: str, target: str) -> None:
    assert default_target(Path("/somewhere") / name) == target


def test_rsync_reports_how_much_it_has_sent(tmp_path: Path) -> None:
    folder, target = fill(tmp_path / "here", "a", "sub/b"), tmp_path / "there"
    (folder / "big").write_bytes(b"x" * 3_000_000)
    target.mkdir()
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')  # instead of ssh: leaves out the host
    shell.chmod(0o755)
    rsync = shutil.which("rsync")
    assert rsync is not None
    sent: list[int] = []
    transfer = upload.FolderTransfer(folder, str(target))
    names = list_files(folder)
    assert upload.total_size(folder, names) == 3_000_006
    assert upload._send_with_rsync([rsync, "-e", str(shell)], os.environ, transfer, names, sent.append)
    assert sent == sorted(sent)
    assert sent[-1] >= 3_000_000
    assert (target / "sub" / "b").read_text() == "sub/b"
