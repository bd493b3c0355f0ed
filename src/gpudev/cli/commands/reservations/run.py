"""`gpu-dev run`."""

import posixpath
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpudev.cli import formatting, output, prompts
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands import folder_copy
from gpudev.cli.commands.folder_copy import CountedFolder
from gpudev.cli.commands.progress import check_ready, wait_until_ready
from gpudev.cli.commands.reservations.reserve import build_request, reservation_options, submit_request
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.commands.sessions.connection_setup import TrailingCommand, choose_route, route_options
from gpudev.cli.commands.signals import signals_as_interrupt, signals_ignored
from gpudev.cli.exit_codes import CliError, ExitCode, local_error, usage_error
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.sdk.http.event_stream import has_ended
from gpudev.sdk.remote import openssh, remote_commands
from gpudev.wire.reservations import JobView

_LONGEST_COMMAND = 1000

# With a reservation: wait, copy, run the command, release.


class RunRequest(NamedTuple):
    command: tuple[str, ...]
    copied: CountedFolder | None
    """Copied to the dev server first; None: nothing is copied."""
    results: tuple[str, ...]
    """Copied back when the command has ended; relative to its folder."""
    direct: bool
    proxy: bool
    keeps_reservation: bool
    """The reservation outlives a detached command."""


def run_attached(session: CommandSession, reserved: ApiReply[JobView], run: RunRequest) -> int:
    """Run the command and release the reservation; returns the exit code."""
    try:
        job, route, folder = _prepare(session, reserved, run)
        since = time.monotonic()
        code = _run_ssh(session, job, route, remote_commands.attached_command_in_folder(folder, run.command))
        seconds = time.monotonic() - since
        if code == openssh.SSH_FAILED:
            _check_not_ended(session, job)
        missing = _fetch_results(session, job, route, run, folder)
    except KeyboardInterrupt:
        short = formatting.short_id(reserved.value.reservation_id)
        released = f"; reservation {short} was released" if _release(session, reserved.value) else ""
        raise CliError(ExitCode.INTERRUPTED, f"interrupted{released}") from None
    except BaseException:
        _release(session, reserved.value)
        raise
    is_released = _release(session, reserved.value, None if code == openssh.SSH_FAILED else code)
    output.write_note(closing_line(job, code, seconds, is_released=is_released))
    return code or (ExitCode.NOT_FOUND if missing else ExitCode.OK)


def closing_line(job: JobView, code: int, seconds: float, *, is_released: bool) -> str:
    """'exit 0 after 3 min; 1 x h100 released; files kept on disk default'."""
    parts = [f"exit {code} after {formatting.format_duration(seconds)}"]
    if is_released:
        parts.append(f"{formatting.hardware(job)} released")
    if job.disk_name:
        parts.append(f"files kept on disk {job.disk_name}")
    elif is_released:
        parts.append("files on scratch space are gone")
    return output.clean(f"{formatting.short_id(job.reservation_id)}: {'; '.join(parts)}")


def _fetch_results(
    session: CommandSession, job: JobView, route: openssh.ProxyCommand, run: RunRequest, folder: str
) -> list[str]:
    """Copy results back, each to the same place below the local folder; returns those that could not be copied."""
    local = run.copied.folder if run.copied is not None else Path.cwd()
    missing: list[str] = []
    for path in run.results:
        into = local if path.startswith("/") else local / posixpath.dirname(path)
        paths = [openssh.CopyPath(True, posixpath.join(folder, path)), openssh.CopyPath(False, f"{into}/")]
        line = openssh.copy_line(
            openssh.find_program("scp"), job, paths, session.env, proxy=route, quiet=not output.stderr_is_terminal()
        )
        if why := _copy_result(line, into):
            output.write_note(f"Note: {path} could not be copied back{why}")
            missing.append(path)
    return missing


def _copy_result(line: Sequence[str], into: Path) -> str:
    """Why it failed, as the end of a sentence. Empty: it is copied."""
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f": cannot create {into} ({error.strerror})"
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=2, check=False)
    return "" if done.returncode == 0 else " (see above)"


def run_detached(session: CommandSession, reserved: ApiReply[JobView], run: RunRequest) -> JobView:
    """Start the command. If that fails, the reservation is released."""
    started = False
    try:
        job, route, folder = _prepare(session, reserved, run)
        line = _ssh_command_line(
            session,
            job,
            route,
            remote_commands.detached_command(folder, run.command, ends_reservation=not run.keeps_reservation),
            tty=False,
        )
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise CliError(ExitCode.REJECTED, f"cannot start the command: {lines[-1] if lines else done.returncode}")
        started = True
    finally:
        if not started:
            _release(session, reserved.value)
    remote_commands.record_detached_run(session.env, job.reservation_id)
    ssh_config.add_reservation(session, job, formatting.utc_now())
    return job


def _prepare(
    session: CommandSession, reserved: ApiReply[JobView], run: RunRequest
) -> tuple[JobView, openssh.ProxyCommand, str]:
    """The ready reservation, the route to its dev server, and the remote folder."""
    try:
        job = wait_until_ready(session, reserved, quiet=False, releasing=True).value
    except CliError as error:
        if error.exit_code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt from error  # nobody will return to this reservation: release it
        raise
    check_ready(job)
    route = choose_route(session, job, direct=run.direct, proxy=run.proxy)
    if run.copied is None:
        return job, route, "."
    return job, route, folder_copy.copy_counted(session, job, route, run.copied)


def _run_ssh(session: CommandSession, job: JobView, route: openssh.ProxyCommand, command: Sequence[str]) -> int:
    """The command's exit code; SSH_FAILED also if ssh itself was killed here."""
    process = subprocess.Popen(_ssh_command_line(session, job, route, command, tty=output.can_ask()))
    with process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    return code if code >= 0 else openssh.SSH_FAILED


def _ssh_command_line(
    session: CommandSession, job: JobView, route: openssh.ProxyCommand, command: Sequence[str], *, tty: bool
) -> list[str]:
    more = ["-o", "BatchMode=yes", "-o", "LogLevel=ERROR", *([] if tty else ["-T"])]
    return openssh.command_line(openssh.find_program(), job, command, session.env, tty=tty, proxy=route, more=more)


def _check_not_ended(session: CommandSession, job: JobView) -> None:
    """The connection may have broken because the reservation ended."""
    current = session.api.run(session.api.client.refresh_job(job))
    if has_ended(current):
        raise CliError(
            ExitCode.RESERVATION_ENDED, f"{formatting.describe_end(current)} while the command ran", code=current.status
        )


def _release(session: CommandSession, job: JobView, exit_code: int | None = None) -> bool:
    """Whether it worked. A failure is only a note: the command's result matters more."""
    try:
        with signals_ignored():
            session.api.run(session.api.client.release_job(job.reservation_id, exit_code))
    except ClientError as error:
        short = formatting.short_id(job.reservation_id)
        output.write_note(f"Note: {error.message}; reservation {short} may still exist: `gpu-dev cancel {short}`")
        return False
    return True


@click.command(cls=TrailingCommand, options_metavar="[OPTIONS] -- COMMAND...")
@reservation_options
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder to copy first, except files in its .gitignore.  [default: the current folder]",
)
@click.option(
    "--get",
    "results",
    metavar="PATH",
    multiple=True,
    help="Copy this file or folder back when the command has ended; relative to its folder; repeat for more.",
)
@click.option("--no-copy", is_flag=True, help="Copy nothing; run the command in the remote home folder.")
@click.option(
    "--detach", "-d", is_flag=True, help="Return at once; the reservation ends with the command. See `gpu-dev logs`."
)
@click.option("--keep", is_flag=True, help="With --detach: keep the reservation after the command has ended.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask; use defaults.")
@route_options
@click.pass_obj
def run(
    command: tuple[str, ...],
    /,
    *,
    folder: Path | None,
    results: tuple[str, ...],
    no_copy: bool,
    detach: bool,
    keep: bool,
    yes: bool,
    direct: bool,
    proxy: bool,
    api_url: str | None,
    **options: Any,
) -> None:
    """Reserve GPUs, run a command on a copy of the current folder, and release them.

    Output and exit code are those of the command. One argument after -- is a shell command line; several are passed
    unchanged. Ctrl-C stops the command or the wait and releases the GPUs.

    \b
    gpu-dev run --gpus 1 -- python train.py --epochs 3
    gpu-dev run --gpus 8 --hours 2 -- 'make data && torchrun --nproc-per-node 8 train.py'
    gpu-dev run --get out/ --get model.pt -- python train.py
    gpu-dev run --detach -- python train.py

    With --detach the reservation ends with the command; `gpu-dev logs` then shows its exit code and last lines.
    """
    if not command:
        raise usage_error("give a command after --", "gpu-dev run --gpus 1 -- python train.py")
    if keep and not detach:
        raise usage_error("--keep requires --detach", "Add --detach, or use `gpu-dev reserve`")
    if results and detach:
        raise usage_error("--get waits for the command, and --detach does not", "`gpu-dev cp` copies results later")
    if no_copy and folder is not None:
        raise usage_error("--folder and --no-copy are mutually exclusive")
    may_ask = output.can_ask() and not yes
    copied = None if no_copy else folder_copy.count_folder(_check_folder((folder or _current_folder()).resolve()))
    if copied is not None and not folder_copy.confirm_large(copied, may_ask=may_ask):
        raise CliError(ExitCode.REJECTED, "cancelled; nothing was run")
    checked = tuple(_check_result(path) for path in results)
    run_request = RunRequest(command, copied, checked, direct, proxy, keep)
    openssh.find_program()
    if checked:
        openssh.find_program("scp")
    session = CommandSession(api_url)
    request = replace(build_request(session, **options), command=shown_command(command))
    if not prompts.confirm_new_disk(session, request.disk_name, may_ask=may_ask, quiet=not may_ask):
        raise CliError(ExitCode.REJECTED, "cancelled; nothing was run")
    with signals_as_interrupt():
        reserved = submit_request(
            session, request, count_given=options["gpus"] is not None, may_ask=may_ask, keeps_reservation=False
        )
        if not detach:
            click.get_current_context().exit(run_attached(session, reserved, run_request))
        short = formatting.short_id(run_detached(session, reserved, run_request).reservation_id)
    end = "It runs until it expires or you cancel it:" if keep else "It is released when the command ends:"
    output.write_note(f"Started on {short}. {end}")
    output.write_note(f"  gpu-dev logs {short} --follow\n  gpu-dev cancel {short}")
    output.write_line(short)


def shown_command(command: Sequence[str]) -> str:
    """For lists: text within the API's limit, whatever the bytes of the command are."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    return line.encode(errors="replace").decode()[:_LONGEST_COMMAND]


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise local_error("the current folder does not exist", "Change to another folder, or give --folder") from error


def _check_folder(folder: Path) -> Path:
    if folder in (Path.home(), Path(folder.anchor)):
        raise usage_error(
            f"refusing to copy {folder} (home or filesystem root)",
            "Change to your project's folder, or give --folder or --no-copy",
        )
    return folder


def _check_result(path: str) -> str:
    """A relative one must stay below its folder, because it is copied to the same place here."""
    plain = posixpath.normpath(path)
    if not path or plain in (".", "/") or plain.split("/")[0] == ".." or path.startswith("~"):
        raise usage_error(f"invalid path {path[:80]!r} for --get (expected e.g. out/ or /tmp/result.csv)")
    return plain
