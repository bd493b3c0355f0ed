"""A dev server: commands over ssh and uploads; and `reserve`, which holds one for a `with` block."""

import errno
import shlex
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import NamedTuple

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import ClientError, CommandFailed, ReservationEnded, UsageError
from gpudev.sdk.http import endpoints
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.endpoints import ApiCall
from gpudev.sdk.http.event_stream import JobWatch, check_ready, has_ended, read_patience, wait_until_ready
from gpudev.sdk.http.routines import ProgramResult, Routine, RunFunction, RunProgram, SyncDriver
from gpudev.sdk.remote import openssh, remote_commands, ssh_route, upload
from gpudev.sdk.reserve_options import ReserveOptions, request_from_options
from gpudev.sdk.resources.jobs import OnJobChange
from gpudev.sdk.resources.sync_async import (
    AsyncDriver,
    AsyncResource,
    Resource,
    SyncResource,
    api_method,
    run_to_completion,
)
from gpudev.wire.reservations import ExtendRequest, JobView

_QUIET_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR")


class CommandResult(NamedTuple):
    """Result of a command."""

    exit_code: int
    stdout: str
    stderr: str


class ServerMethods(Resource):
    """A dev server: `with client.reserve(…) as server`, or `client.server(job_id)`."""

    job: JobView
    """The reservation as last received."""
    _route: tuple[str, ...] | None
    _is_route_known: bool

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} ({self.job.status})>"

    @property
    def id(self) -> str:
        return self.job.reservation_id

    @api_method
    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        capture: bool = True,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
    ) -> Routine[CommandResult]:
        """Run a command. A string is a command line for the remote shell; a sequence is passed unchanged. The output is
        returned, or goes to this program's standard streams (`capture=False`). Raises CommandFailed for a non-zero exit
        code (128 plus the number for a signal), or ReservationEnded if the reservation has ended, unless
        `check=False`; NotInTime after `timeout` seconds."""
        line = yield from self._command_line(remote_commands.attached_command(_as_arguments(command)))
        sent = stdin.encode() if isinstance(stdin, str) else stdin
        done = yield from _run_program(RunProgram(line, sent, capture, timeout, self._session.env))
        result = _decode_result(done)
        if check and result.exit_code != 0:
            raise (yield from self._failure(command, result))
        return result

    @api_method
    def copy_folder(self, folder: str | Path = ".", target: str | None = None) -> Routine[str]:
        """Copy a folder to the dev server, except files in its .gitignore. Returns the target, relative to the remote
        home folder; by default a folder of the same name."""
        source = Path(folder).resolve()
        if not source.is_dir():
            raise UsageError(f"no folder {source}")
        where = target or upload.default_target(source)
        route = yield from self._find_route()
        yield RunFunction(lambda: upload.copy_folder(self.job, self._session.env, route, source, where))
        return where

    @api_method
    def download(self, remote: str, local: str | Path = ".") -> Routine[Path]:
        """Copy a file or folder of the dev server to this machine. `remote` is relative to the remote home folder.
        `local` is a folder to put it into, or its new path; returns where it is now. Raises CommandFailed if there is
        nothing of that name."""
        if not remote or "\0" in remote:
            raise UsageError("give the file or folder to download")
        check_ready(self.job)
        route = yield from self._find_route()
        target = Path(local)
        paths = (openssh.CopyPath(True, remote), openssh.CopyPath(False, _local_copy_path(target)))
        line = yield RunFunction(
            lambda: openssh.copy_line(
                openssh.find_program("scp"), self.job, paths, self._session.env, proxy=route, quiet=True
            )
        )
        is_folder = target.is_dir()
        done = yield from _run_program(RunProgram(line, None, True, None, self._session.env))
        if done.exit_code != 0:
            raise (yield from self._failure(f"download {remote}", _decode_result(done)))
        return target / PurePosixPath(remote).name if is_folder else target

    @api_method
    def start(self, command: str | Sequence[str], *, folder: str = ".", then_release: bool = False) -> Routine[None]:
        """Start a detached command in a folder of the remote home. One at a time; `output` and `gpu-dev logs` show its
        output while the dev server exists. `then_release`: the reservation ends with the command; its history keeps the
        exit code and the last lines."""
        line = yield from self._command_line(
            remote_commands.detached_command(folder, _as_arguments(command), ends_reservation=then_release)
        )
        done = yield from _run_program(RunProgram(line, None, True, None, self._session.env))
        if done.exit_code != 0:
            raise (yield from self._failure(command, _decode_result(done)))

    @api_method
    def output(self, *, wait: bool = False, timeout: float | None = None) -> Routine[CommandResult]:
        """The output of the detached command. `wait`: until it ends, with its exit code."""
        line = yield from self._command_line(remote_commands.output_command(follow=wait))
        return _decode_result((yield from _run_program(RunProgram(line, None, True, timeout, self._session.env))))

    @api_method
    def refresh(self) -> Routine[JobView]:
        """The current state of the reservation."""
        self.job = yield from self._client.fetch_value(endpoints.get_job(self.id))
        return self.job

    @api_method
    def extend(self, hours: float) -> Routine[JobView]:
        """Extend the reservation by this many hours."""
        self.job = yield from self._client.fetch_value(
            endpoints.extend_job(self.id, ExtendRequest(extension_hours=float(hours)))
        )
        return self.job

    @api_method
    def cancel(self) -> Routine[JobView]:
        """Cancel the reservation and end everything that runs there."""
        self.job = yield from self._client.fetch_value(endpoints.cancel_job(self.id))
        return self.job

    def _command_line(self, command: Sequence[str]) -> Routine[Sequence[str]]:
        check_ready(self.job)
        route = yield from self._find_route()
        line: Sequence[str] = yield RunFunction(
            lambda: openssh.command_line(
                openssh.find_program(),
                self.job,
                command,
                self._session.env,
                tty=False,
                proxy=route,
                more=_QUIET_OPTIONS,
            )
        )
        return line

    def _failure(self, command: str | Sequence[str], result: CommandResult) -> Routine[ClientError]:
        """The connection may have broken because the reservation ended."""
        if result.exit_code == openssh.SSH_FAILED:
            self.job = yield from self._client.refresh_job(self.job)
            try:
                check_ready(self.job)
            except ReservationEnded as error:
                return error
        return _command_failed(command, result)

    def _find_route(self) -> Routine[tuple[str, ...] | None]:
        """Probed once per object."""
        if not self._is_route_known:
            self._route = yield RunFunction(
                lambda: ssh_route.choose_route(self._session, self.job, datetime.now(UTC), direct=False, proxy=False)
            )
            self._is_route_known = True
        return self._route


class Server(ServerMethods, SyncResource):
    def __init__(self, session: ClientSession, client: ApiClient, driver: SyncDriver, job: JobView) -> None:
        super().__init__(session, client, driver)
        self.job, self._route, self._is_route_known = job, None, False


class AsyncServer(ServerMethods, AsyncResource):
    def __init__(self, session: ClientSession, client: ApiClient, driver: AsyncDriver, job: JobView) -> None:
        super().__init__(session, client, driver)
        self.job, self._route, self._is_route_known = job, None, False


def _run_program(effect: RunProgram) -> Routine[ProgramResult]:
    try:
        done: ProgramResult = yield effect
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        step = "Pass it as `stdin` to a remote shell, or copy it as a file"
        raise UsageError("the command line is too long for this machine", step) from error
    return done


def _local_copy_path(path: Path) -> str:
    """scp takes a name with a colon for a remote one, and one with a dash for an option."""
    return str(path) if path.is_absolute() else f"./{path}"


def _as_arguments(command: str | Sequence[str]) -> Sequence[str]:
    """As `remote_commands` expects: one argument is a shell command line, several are passed unchanged."""
    parts = [command] if isinstance(command, str | bytes) else command
    other = next((part for part in parts if not isinstance(part, str)), None)
    if other is not None:
        raise TypeError(f"a command must be text, not {type(other).__name__}: {other!r}")
    if any("\0" in part for part in parts):
        raise UsageError("a command cannot contain a NUL character")
    if isinstance(command, str):
        return [command]
    if not command:
        raise UsageError("the command is empty")
    return list(command) if len(command) > 1 else [shlex.quote(command[0])]


def _decode_result(done: ProgramResult) -> CommandResult:
    return CommandResult(done.exit_code, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def _command_failed(command: str | Sequence[str], result: CommandResult) -> CommandFailed:
    shown = command if isinstance(command, str) else " ".join(command)
    lines = result.stderr.strip().splitlines()
    why = f": {lines[-1]}" if lines else ""
    is_ambiguous = result.exit_code == openssh.SSH_FAILED
    how = "ssh failed, or exit code 255" if is_ambiguous else f"exit code {result.exit_code}"
    return CommandFailed(
        f"`{shown[:200]}`: {how}{why}", exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr
    )


# A reservation for the duration of a `with` block.


class ContextOptions(NamedTuple):
    reserve_options: ReserveOptions
    on_change: OnJobChange | None
    timeout: float | None


class _ReservationContextMethods(Resource):
    _options: ContextOptions
    _submission: ApiCall[JobView] | None = None
    """The submit request, once it may have been sent."""
    _job: JobView | None = None
    _is_entered = False

    def _check_and_enter(self) -> None:
        if self._is_entered:
            raise UsageError("this block is already entered", "Call `reserve` once per block")
        self._is_entered = True

    def _start(self) -> Routine[JobView]:
        """Submit and wait until ready. After any exception the caller runs `_abort`."""
        request = yield RunFunction(lambda: request_from_options(self._session, self._options.reserve_options))
        deadline = None if self._options.timeout is None else monotonic() + self._options.timeout
        self._submission = endpoints.submit_job(request, str(uuid.uuid4()))
        self._job = yield from self._client.fetch_value(self._submission)
        patience = read_patience(self._session.env)
        watch = JobWatch(
            self._client,
            self._job.reservation_id,
            patience=patience,
            known_version=self._job.version,
            deadline=deadline,
        )
        self._job = yield from wait_until_ready(watch, self._job, self._options.on_change)
        return check_ready(self._job)

    def _abort(self, reason: BaseException) -> Routine[None]:
        if self._submission is not None and self._job is None and not isinstance(reason, ClientError):
            # Interrupted during the submit: repeating it returns the reservation, if one was created.
            try:
                self._job = yield from self._client.fetch_value(self._submission)
            except ClientError as error:
                reason.add_note(f"A reservation may have been created: {error.message}")
        yield from self._finish(reason)

    def _finish(self, reason: BaseException | None) -> Routine[None]:
        """Release. A failure is added to `reason` as a note and does not replace it."""
        self._is_entered, self._submission = False, None
        try:
            yield from self._release()
        except ClientError as error:
            if reason is None:
                raise
            reason.add_note(f"The reservation could not be released: {error.message}")

    def _release(self) -> Routine[None]:
        job, self._job = self._job, None
        if job is not None and not has_ended(job):
            yield from self._client.release_job(job.reservation_id)


class ReservationContext(_ReservationContextMethods, SyncResource):
    """`with client.reserve(…) as server`."""

    def __init__(
        self,
        session: ClientSession,
        client: ApiClient,
        driver: SyncDriver,
        options: ContextOptions,
    ) -> None:
        super().__init__(session, client, driver)
        self._options = options

    def __enter__(self) -> Server:
        self._check_and_enter()
        try:
            job = self._perform(self._start())
        except BaseException as reason:
            self._driver.run(self._abort(reason))  # works even if the client is closed
            raise
        return Server(self._session, self._client, self._driver, job)

    def __exit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        self._driver.run(self._finish(reason))


class AsyncReservationContext(_ReservationContextMethods, AsyncResource):
    """`async with client.reserve(…) as server`."""

    def __init__(
        self,
        session: ClientSession,
        client: ApiClient,
        driver: AsyncDriver,
        options: ContextOptions,
    ) -> None:
        super().__init__(session, client, driver)
        self._options = options

    async def __aenter__(self) -> AsyncServer:
        self._check_and_enter()
        try:
            job = await self._perform(self._start())
        except BaseException as reason:
            await run_to_completion(self._perform(self._abort(reason)))
            raise
        return AsyncServer(self._session, self._client, self._driver, job)

    async def __aexit__(self, _kind: object, reason: BaseException | None, _where: object) -> None:
        await run_to_completion(self._perform(self._finish(reason)))
