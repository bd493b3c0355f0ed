"""Uploads a folder to a dev server: which files, and by which program.

What git would ignore stays here. Where both sides have rsync only what changed is sent; else everything goes as one
stream through ssh.
"""

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpudev.sdk.errors import LocalError, Unavailable, UsageError
from gpudev.sdk.remote import openssh
from gpudev.wire.reservations import JobView

_SECONDS_TO_LIST = 300
_TARGET = r"[A-Za-z0-9_.][A-Za-z0-9_./-]{0,250}"
"""Every rsync and every shell on the way reads it the same."""
_UNSUPPORTED_EXIT_CODES = (1, 2, 4)
"""How an rsync says that it knows an option or the other's protocol not. macOS has another program of that name."""
_RSYNC_CHECK = "command -v rsync >/dev/null 2>&1"


class FolderTransfer(NamedTuple):
    folder: Path
    target: str
    """Relative to the home there."""


def copy_folder(job: JobView, env: Mapping[str, str], proxy: openssh.ProxyCommand, folder: Path, target: str) -> None:
    """`target` is relative to the home there. What is there already and not here stays."""
    copy_files(job, env, proxy, FolderTransfer(folder, target), list_files(folder))


def copy_files(
    job: JobView, env: Mapping[str, str], proxy: openssh.ProxyCommand, transfer: FolderTransfer, names: Sequence[bytes]
) -> None:
    """Those of the folder that `names` has, and its folders that hold none of them."""
    folder, target = transfer
    if not re.fullmatch(_TARGET, target) or ".." in target.split("/"):
        raise UsageError(f"invalid folder {target[:200]!r} (expected letters, digits, / . _ and -, below the home)")
    with _temporary_ssh_config(job, env, proxy) as settings:
        program = [openssh.find_program(), "-F", str(settings), "-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        prepared = openssh.remote_command_line(
            ("sh", "-c", f'mkdir -p -- "$1" && {{ {_RSYNC_CHECK} && echo rsync || :; }}', "sh", target)
        )
        # Not our standard input: what is in it may be meant for a command that comes after.
        done = subprocess.run(
            [*program, "--", "there", prepared],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=dict(env),
        )
        _check_copied(done.returncode, done.stderr)
        names = [*names, *list_folders_without_files(folder, names)]
        rsync = shutil.which("rsync") if done.stdout.strip() == b"rsync" else None
        through = f"{_quoted(program[0])} -F {_quoted(str(settings))} -o BatchMode=yes"
        if rsync is None or not _send_with_rsync([rsync, "-e", through], env, transfer, names):
            unpack = openssh.remote_command_line(("tar", "-xzf", "-", "-C", target))
            _send_with_tar([*program, "--", "there", unpack], env, folder, names)


def _quoted(word: str) -> str:
    """For rsync, which splits it; only where it must be, for not every rsync knows quotes."""
    return f'"{word}"' if " " in word else word


def default_target(folder: Path) -> str:
    """A folder of the same name, as far as that can be had."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "files"


def list_files(folder: Path) -> list[bytes]:
    """Paths below the folder: everything that is there and not ignored."""
    check_can_list(folder)
    git = shutil.which("git")
    return sorted(_walk(folder) if git is None else _list_with_git(git, folder))


def check_can_list(folder: Path) -> None:
    """Only git knows what a .gitignore means, and what it leaves out may be secret."""
    if shutil.which("git") is None and any(name.rpartition(b"/")[2] == b".gitignore" for name in _walk(folder)):
        raise LocalError(
            f"git is not on this machine, so nobody can tell what the .gitignore in {folder} leaves out", "Install git"
        )


def list_folders_without_files(folder: Path, names: Sequence[bytes]) -> list[bytes]:
    """Those that hold none of these files and are not ignored themselves: programs expect them, and write there."""
    git = shutil.which("git")
    holding = {name[:end] for name in names for end in range(len(name)) if name[end] == ord("/")}
    bare: list[bytes] = []
    level = [b""]
    while level:
        inner = [path for place in level for path in _folders_in(folder, place)]
        others = [path for path in inner if path not in holding]
        ignored = _paths_ignored_by_git(git, folder, others) if git is not None and others else set()
        kept = [path for path in others if path not in ignored]
        bare += kept
        level = [*(path for path in inner if path in holding), *kept]
    return sorted(bare)


def _folders_in(folder: Path, place: bytes) -> Iterator[bytes]:
    try:
        entries = list(os.scandir(os.path.join(os.fsencode(folder), place)))  # noqa: PTH118 - bytes
    except OSError:  # gone meanwhile, or closed to us
        return
    for entry in entries:
        is_repository = entry.name == b".git" or os.path.lexists(os.path.join(entry.path, b".git"))  # noqa: PTH118 - bytes
        if entry.is_dir(follow_symlinks=False) and not is_repository:  # one within goes by rules of its own
            yield place + b"/" + entry.name if place else entry.name


def _paths_ignored_by_git(git: str, folder: Path, paths: Sequence[bytes]) -> set[bytes]:
    """All of them, if it cannot say."""
    ask, said = ("check-ignore", "-z", "--stdin"), b"".join(path + b"\0" for path in paths)
    done = _run_git([git, "-C", str(folder), *ask], said)
    if done.returncode > 1:
        with _empty_repository(git) as own:
            done = _run_git([git, "-C", str(folder), f"--git-dir={own}", f"--work-tree={folder}", *ask], said)
    return set(done.stdout.split(b"\0")) if done.returncode <= 1 else set(paths)


def _list_with_git(git: str, folder: Path) -> Iterator[bytes]:
    # A folder that its own repository ignores as a whole is not meant to be empty.
    named = _git_files([git, "-C", str(folder)], folder) or _git_files_without_repository(git, folder)
    for name in named:
        path = folder / os.fsdecode(name)
        if path.is_dir() and not path.is_symlink():  # a repository within this one, of which git says no more
            yield from (name + b"/" + inner for inner in _list_with_git(git, path))
        else:
            yield name


def _git_files_without_repository(git: str, folder: Path) -> list[bytes]:
    with _empty_repository(git) as own:
        found = _git_files([git, "-C", str(folder), f"--git-dir={own}", f"--work-tree={folder}"], folder)
    if found is None:
        raise LocalError(f"git cannot list {folder}", "Try `git status` there")
    return found


@contextmanager
def _empty_repository(git: str) -> Iterator[str]:
    """For a folder in no repository, or none that git trusts: one beside it lets git read its .gitignore."""
    with tempfile.TemporaryDirectory(prefix="gpu-dev-") as scratch:
        _run_git([git, "init", "-q", scratch])
        yield f"{scratch}/.git"


def _git_files(command: Sequence[str], folder: Path) -> list[bytes] | None:
    """None: it cannot say."""
    done = _run_git([*command, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "."])
    if done.returncode != 0:
        return None
    root = os.fsencode(folder)
    named = {name.rstrip(b"/") for name in done.stdout.split(b"\0") if name}
    # git still names what was deleted and not yet committed.
    return [name for name in named if os.path.lexists(os.path.join(root, name))]  # noqa: PTH118 - bytes


def _run_git(command: Sequence[str], stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    # Started by a git hook, we would be told of that repository.
    without_hooks = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        timeout=_SECONDS_TO_LIST,
        check=False,
        env=without_hooks,
    )


def _walk(folder: Path) -> Iterator[bytes]:
    root = os.fsencode(folder)
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != b".git"]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]  # noqa: PTH114, PTH118 - bytes
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(place, name), root)  # noqa: PTH118 - bytes


def _send_with_rsync(
    command: Sequence[str], env: Mapping[str, str], transfer: FolderTransfer, names: Sequence[bytes]
) -> bool:
    """False: this rsync cannot do it, and nothing was copied."""
    # No -r: a folder among the names goes without what is in it, which may be ignored.
    how = ("-a", "--no-owner", "--no-group", "--from0", "--files-from=-")
    done = subprocess.run(
        [*command, *how, "--", f"{transfer.folder}/", f"there:{transfer.target.rstrip('/')}/"],
        input=b"".join(name + b"\0" for name in names),
        capture_output=True,
        check=False,
        env=dict(env),
    )
    if done.returncode in _UNSUPPORTED_EXIT_CODES:
        return False
    _check_copied(done.returncode, done.stderr)
    return True


def _send_with_tar(command: Sequence[str], env: Mapping[str, str], folder: Path, names: Sequence[bytes]) -> None:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env))
    assert process.stdin is not None
    try:
        with (
            gzip.GzipFile(fileobj=process.stdin, mode="wb", compresslevel=1) as packed,
            tarfile.open(fileobj=packed, mode="w|") as archive,
        ):
            for name in names:
                shown = os.fsdecode(name)
                archive.add(folder / shown, arcname=shown, recursive=False)
    except BrokenPipeError:
        pass  # it says why below
    except BaseException:
        process.kill()
        process.wait()
        raise
    _, told = process.communicate()
    _check_copied(process.returncode, told)


@contextmanager
def _temporary_ssh_config(job: JobView, env: Mapping[str, str], proxy: openssh.ProxyCommand) -> Iterator[Path]:
    """A configuration in which the dev server is called `there`: programs that start ssh by themselves are told no
    more than one file. What the person has set for all hosts holds below it."""
    lines = [
        "Host there",
        *openssh.build_target(job, env, proxy).as_config_lines(),
        "Match all",
        "    Include ~/.ssh/config",
    ]
    with tempfile.TemporaryDirectory(prefix="gpu-dev-") as folder:
        path = Path(folder) / "ssh_config"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield path


def _check_copied(exit_code: int, stderr: bytes) -> None:
    if exit_code != 0:
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        raise Unavailable(f"the files could not be copied ({lines[-1] if lines else f'exit code {exit_code}'})")
