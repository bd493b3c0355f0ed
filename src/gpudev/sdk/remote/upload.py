"""Uploads a folder to a dev server.

Files that git ignores are skipped. If both sides have rsync, only changes are sent; otherwise everything is sent as one
tar stream through ssh.
"""

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gpudev.sdk.errors import LocalError, Unavailable, UsageError
from gpudev.sdk.remote import openssh
from gpudev.wire.reservations import JobView

_SECONDS_TO_LIST = 300
_TARGET = r"[A-Za-z0-9_.][A-Za-z0-9_./-]{0,250}"
"""Needs no quoting in any shell or rsync version."""
_UNSUPPORTED_EXIT_CODES = (1, 2, 4)
"""Exit codes of rsync for an unknown option or protocol. macOS ships a different rsync."""
_RSYNC_CHECK = "command -v rsync >/dev/null 2>&1"


OnProgress = Callable[[int], object]
_RSYNC_BYTES = re.compile(rb"\s*([0-9][0-9,.]*) +[0-9]+%")


class FolderTransfer(NamedTuple):
    folder: Path
    target: str
    """Relative to the remote home folder."""


def copy_folder(job: JobView, env: Mapping[str, str], proxy: openssh.ProxyCommand, folder: Path, target: str) -> None:
    """`target` is relative to the remote home folder. Other files there are kept."""
    copy_files(job, env, proxy, FolderTransfer(folder, target), list_files(folder))


def copy_files(
    job: JobView,
    env: Mapping[str, str],
    proxy: openssh.ProxyCommand,
    transfer: FolderTransfer,
    names: Sequence[bytes],
    *,
    on_progress: OnProgress | None = None,
) -> None:
    """Copies the named files, and the folders without any of them. `on_progress` gets the bytes sent so far."""
    folder, target = transfer
    if not re.fullmatch(_TARGET, target) or ".." in target.split("/"):
        raise UsageError(f"invalid folder {target[:200]!r} (expected letters, digits, / . _ and -, below the home)")
    with _temporary_ssh_config(job, env, proxy) as settings:
        program = [openssh.find_program(), "-F", str(settings), "-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        prepare = openssh.remote_command_line(
            ("sh", "-c", f'mkdir -p -- "$1" && {{ {_RSYNC_CHECK} && echo rsync || :; }}', "sh", target)
        )
        # Not our standard input: it may be meant for a later command.
        done = subprocess.run(
            [*program, "--", "there", prepare],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=dict(env),
        )
        _check_copied(done.returncode, done.stderr)
        names = [*names, *list_folders_without_files(folder, names)]
        rsync = shutil.which("rsync") if done.stdout.strip() == b"rsync" else None
        ssh_command = f"{_quoted(program[0])} -F {_quoted(str(settings))} -o BatchMode=yes"
        if rsync is None or not _send_with_rsync([rsync, "-e", ssh_command], env, transfer, names, on_progress):
            unpack = openssh.remote_command_line(("tar", "-xzf", "-", "-C", target))
            _send_with_tar([*program, "--", "there", unpack], env, folder, names, on_progress)


def _quoted(word: str) -> str:
    """For rsync, which splits the command; only if needed, because not every rsync supports quotes."""
    return f'"{word}"' if " " in word else word


def default_target(folder: Path) -> str:
    """A folder of the same name, without special characters."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "files"


def list_files(folder: Path) -> list[bytes]:
    """Relative paths of all files that git does not ignore."""
    check_can_list(folder)
    git = shutil.which("git")
    return sorted(_walk(folder) if git is None else _list_with_git(git, folder))


def total_size(folder: Path, names: Sequence[bytes]) -> int:
    """Bytes of these files. One that is gone meanwhile counts nothing."""
    root, total = os.fsencode(folder), 0
    for name in names:
        with suppress(OSError):
            total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 - bytes
    return total


def check_can_list(folder: Path) -> None:
    """Requires git if there is a .gitignore: ignored files may be secret."""
    if shutil.which("git") is None and any(name.rpartition(b"/")[2] == b".gitignore" for name in _walk(folder)):
        raise LocalError(f"git is required to apply the .gitignore in {folder}, and is not installed", "Install git")


def list_folders_without_files(folder: Path, names: Sequence[bytes]) -> list[bytes]:
    """Folders without any of these files that are not ignored: programs may expect them to exist."""
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
    except OSError:  # deleted meanwhile, or not readable
        return
    for entry in entries:
        is_repository = entry.name == b".git" or os.path.lexists(os.path.join(entry.path, b".git"))  # noqa: PTH118 - bytes
        if entry.is_dir(follow_symlinks=False) and not is_repository:  # a nested repository has its own rules
            yield place + b"/" + entry.name if place else entry.name


def _paths_ignored_by_git(git: str, folder: Path, paths: Sequence[bytes]) -> set[bytes]:
    """All of them if git fails."""
    arguments, stdin = ("check-ignore", "-z", "--stdin"), b"".join(path + b"\0" for path in paths)
    done = _run_git([git, "-C", str(folder), *arguments], stdin)
    if done.returncode > 1:
        with _empty_repository(git) as own:
            done = _run_git([git, "-C", str(folder), f"--git-dir={own}", f"--work-tree={folder}", *arguments], stdin)
    return set(done.stdout.split(b"\0")) if done.returncode <= 1 else set(paths)


def _list_with_git(git: str, folder: Path) -> Iterator[bytes]:
    # A folder that its repository ignores entirely is listed without the repository.
    named = _git_files([git, "-C", str(folder)], folder) or _git_files_without_repository(git, folder)
    for name in named:
        path = folder / os.fsdecode(name)
        if path.is_dir() and not path.is_symlink():  # a nested repository, which git does not list
            yield from (name + b"/" + inner for inner in _list_with_git(git, path))
        else:
            yield name


def _git_files_without_repository(git: str, folder: Path) -> list[bytes]:
    with _empty_repository(git) as own:
        found = _git_files([git, "-C", str(folder), f"--git-dir={own}", f"--work-tree={folder}"], folder)
    if found is None:
        raise LocalError(f"git cannot list {folder}", "Run `git status` there")
    return found


@contextmanager
def _empty_repository(git: str) -> Iterator[str]:
    """A temporary repository, so that git applies .gitignore in a folder outside any trusted repository."""
    with tempfile.TemporaryDirectory(prefix="gpu-dev-") as scratch:
        _run_git([git, "init", "-q", scratch])
        yield f"{scratch}/.git"


def _git_files(command: Sequence[str], folder: Path) -> list[bytes] | None:
    """None: git failed."""
    done = _run_git([*command, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "."])
    if done.returncode != 0:
        return None
    root = os.fsencode(folder)
    named = {name.rstrip(b"/") for name in done.stdout.split(b"\0") if name}
    # git also lists deleted files that are not committed yet.
    return [name for name in named if os.path.lexists(os.path.join(root, name))]  # noqa: PTH118 - bytes


def _run_git(command: Sequence[str], stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    # A git hook would set variables for its own repository.
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
    command: Sequence[str],
    env: Mapping[str, str],
    transfer: FolderTransfer,
    names: Sequence[bytes],
    on_progress: OnProgress | None,
) -> bool:
    """False: this rsync does not support it, and nothing was copied."""
    # No -r: the content of a named folder may be ignored.
    options = ["-a", "--no-owner", "--no-group", "--from0", "--files-from=-"]
    options += ["--info=progress2"] if on_progress is not None else []
    line = [*command, *options, "--", f"{transfer.folder}/", f"there:{transfer.target.rstrip('/')}/"]
    # Files instead of pipes: rsync may write before it has read everything.
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as errors:
        listed.write(b"".join(name + b"\0" for name in names))
        listed.seek(0)
        process = subprocess.Popen(line, stdin=listed, stdout=subprocess.PIPE, stderr=errors, env=dict(env))
        with process:
            try:
                _report_rsync_progress(process, on_progress)
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        stderr = errors.read()
    if process.returncode in _UNSUPPORTED_EXIT_CODES:
        return False
    _check_copied(process.returncode, stderr)
    return True


def _report_rsync_progress(process: "subprocess.Popen[bytes]", on_progress: OnProgress | None) -> None:
    assert process.stdout is not None
    while shown := os.read(process.stdout.fileno(), 4096):
        found = _RSYNC_BYTES.findall(shown)
        if found and on_progress is not None:
            on_progress(int(re.sub(rb"[,.]", b"", found[-1])))


def _send_with_tar(
    command: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    names: Sequence[bytes],
    on_progress: OnProgress | None,
) -> None:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env))
    assert process.stdin is not None
    sent = 0
    try:
        with (
            gzip.GzipFile(fileobj=process.stdin, mode="wb", compresslevel=1) as packed,
            tarfile.open(fileobj=packed, mode="w|") as archive,
        ):
            for name in names:
                shown = os.fsdecode(name)
                archive.add(folder / shown, arcname=shown, recursive=False)
                if on_progress is not None:
                    sent += (folder / shown).lstat().st_size
                    on_progress(sent)
    except BrokenPipeError:
        pass  # reported below
    except BaseException:
        process.kill()
        process.wait()
        raise
    _, stderr = process.communicate()
    _check_copied(process.returncode, stderr)


@contextmanager
def _temporary_ssh_config(job: JobView, env: Mapping[str, str], proxy: openssh.ProxyCommand) -> Iterator[Path]:
    """An ssh configuration with the dev server as host `there`, for programs that start ssh themselves. Includes the
    user's configuration for all hosts."""
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
        raise Unavailable(f"cannot copy the files ({lines[-1] if lines else f'exit code {exit_code}'})")
