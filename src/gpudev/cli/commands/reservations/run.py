"""What `gpu-dev run` does once it has a reservation: wait, copy, run, and let go of it again, whatever happens."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpudev.cli import formatting, output
from gpudev.cli.api_calls import ApiReply
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.reservations import detached_runs
from gpudev.cli.commands.reservations.progress import check_ready, wait_until_ready
from gpudev.cli.commands.reservations.signals import signals_ignored
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.commands.sessions.connection_setup import choose_route
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.sdk.errors import ClientError
from gpudev.sdk.remote import openssh, remote_commands, upload
from gpudev.sdk.standing import has_ended
from gpudev.wire.reservations import JobView

_SSH_FAILED = 255


class RunRequest(NamedTuple):
    """What was asked for."""

    command: tuple[str, ...]
    folder: Path | None
    """What is copied there first; None: nothing."""
    direct: bool
    proxy: bool
    keeps_reservation: bool
    """When one that was let go has ended, its reservation stays."""


def run_attached(session: CommandSession, reserved: ApiReply[JobView], run: RunRequest) -> int:
    """The command's exit code, when it has ended and the reservation is released."""
    with _releasing(session, reserved.value):
        job, way, folder = _prepare(session, reserved, run)
        code = _run_ssh(session, job, way, remote_commands.attached_command_in_folder(folder, run.command))
        if code == _SSH_FAILED:
            _check_not_ended(session, job)
        return code


def run_detached(session: CommandSession, reserved: ApiReply[JobView], run: RunRequest) -> JobView:
    """Begun there. Unless it begins, the reservation is released."""
    begun = False
    try:
        job, way, folder = _prepare(session, reserved, run)
        line = _ssh_command_line(
            session,
            job,
            way,
            remote_commands.detached_command(folder, run.command, ends_reservation=not run.keeps_reservation),
            tty=False,
        )
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            told = done.stderr.strip().splitlines()
            raise CliError(ExitCode.REJECTED, f"it could not be begun: {told[-1] if told else done.returncode}")
        begun = True
    finally:
        if not begun:
            _release(session, reserved.value)
    detached_runs.record_detached_run(session.env, job.reservation_id)
    ssh_config.add_reservation(session, job, formatting.utc_now())
    return job


def _prepare(
    session: CommandSession, reserved: ApiReply[JobView], run: RunRequest
) -> tuple[JobView, openssh.ProxyCommand, str]:
    """The dev server, the way to it, and the folder there."""
    try:
        job = wait_until_ready(session, reserved, quiet=False, releasing=True).value
    except CliError as error:
        if error.exit_code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt from error  # unlike others who wait, nobody comes back to this one
        raise
    check_ready(job)
    way = choose_route(session, job, direct=run.direct, proxy=run.proxy)
    if run.folder is None:
        return job, way, "."
    target = upload.default_target(run.folder)
    names = upload.list_files(run.folder)
    short = formatting.short_id(job.reservation_id)
    output.write_note(f"{short}: {len(names)} file{'' if len(names) == 1 else 's'} to ~/{target} there")
    upload.copy_files(job, session.env, way, upload.FolderTransfer(run.folder, target), names)
    return job, way, target


def _run_ssh(session: CommandSession, job: JobView, route: openssh.ProxyCommand, command: Sequence[str]) -> int:
    process = subprocess.Popen(_ssh_command_line(session, job, route, command, tty=output.can_ask()))
    with process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            raise


def _ssh_command_line(
    session: CommandSession, job: JobView, route: openssh.ProxyCommand, command: Sequence[str], *, tty: bool
) -> list[str]:
    more = ["-o", "BatchMode=yes", "-o", "LogLevel=ERROR", *([] if tty else ["-T"])]
    return openssh.command_line(openssh.find_program(), job, command, session.env, tty=tty, proxy=route, more=more)


def _check_not_ended(session: CommandSession, job: JobView) -> None:
    """A connection that broke may have broken because there is nothing left to be connected to."""
    try:
        now = session.api.get_job(job.reservation_id).value
    except ClientError:
        return
    if has_ended(now):
        raise CliError(
            ExitCode.RESERVATION_ENDED, f"{formatting.describe_end(now)} while the command ran", code=now.status
        )


@contextmanager
def _releasing(session: CommandSession, job: JobView) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        released = (
            f"; reservation {formatting.short_id(job.reservation_id)} is released" if _release(session, job) else ""
        )
        raise CliError(ExitCode.INTERRUPTED, f"interrupted{released}") from None
    except BaseException:
        _release(session, job)
        raise
    _release(session, job)


def _release(session: CommandSession, job: JobView) -> bool:
    """Whether it is. Told if it fails: how the command ended matters more."""
    try:
        with signals_ignored():
            session.api.cancel(job.reservation_id)
    except ClientError as error:
        if error.code in ("conflict", "not_found"):  # it has ended by itself
            return True
        short = formatting.short_id(job.reservation_id)
        output.write_note(f"Note: {error.message}, so reservation {short} may still be there: `gpu-dev cancel {short}`")
        return False
    return True
