"""Routines: effects as data, and the driver that runs them in the calling thread.

A routine is a generator. It yields an effect, is sent the effect's result, and returns its own; a failure is thrown
into it. A driver (`SyncDriver`, `AsyncDriver`) performs the effects, so the client's logic is written once, without
threads or event loops.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, assert_never

from gpudev.sdk.errors import NotInTime, UsageError
from gpudev.sdk.http.transport import HttpRequest, HttpTransport, LineStream

_T = TypeVar("_T")


class Send(NamedTuple):
    """Results in an HttpResponse, or throws Unreachable."""

    request: HttpRequest


class OpenStream(NamedTuple):
    """Results in a LineStream, or in an HttpResponse. The stream breaks after `silence` seconds without data."""

    request: HttpRequest
    silence: float


class ReadLine(NamedTuple):
    """Results in bytes, or None at the end. `within`: timeout in seconds."""

    stream: LineStream
    within: float | None


class CloseStream(NamedTuple):
    stream: LineStream


class Pause(NamedTuple):
    seconds: float


class RunFunction(NamedTuple):
    """A local function that may block. Results in what it returns."""

    function: Callable[[], Any]


class Notify(NamedTuple):
    """Calls the program's callback; `AsyncDriver` awaits an asynchronous one."""

    listener: Callable[[Any], Any]
    value: Any


class RunProgram(NamedTuple):
    """A local program. Results in a ProgramResult; throws NotInTime after `timeout`."""

    arguments: Sequence[str]
    stdin: bytes | None
    """Standard input; None: empty."""
    capture_output: bool
    """False: output goes to this process's standard streams."""
    timeout: float | None
    environment: Mapping[str, str]


class ProgramResult(NamedTuple):
    exit_code: int
    stdout: bytes
    stderr: bytes


Effect: TypeAlias = Send | OpenStream | ReadLine | CloseStream | Pause | RunFunction | Notify | RunProgram
Routine: TypeAlias = Generator[Effect, Any, _T]


# The synchronous driver.


class SyncDriver:
    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def check_open(self) -> None:
        if self._is_closed:
            raise UsageError("this client is closed")

    def run(self, routine: Routine[_T]) -> _T:
        """Run to the end. Errors, including KeyboardInterrupt, are thrown into the routine, so that it can clean up."""
        result: Any = None
        failure: BaseException | None = None
        while True:
            try:
                effect = routine.send(result) if failure is None else routine.throw(failure)
            except StopIteration as end:
                value: _T = end.value
                return value
            result, failure = None, None
            try:
                result = self._perform_effect(effect)
            except BaseException as error:  # noqa: BLE001 - the routine decides what it means
                failure = error

    def _perform_effect(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return self._transport.send(request)
            case OpenStream(request, silence):
                return self._transport.open_stream(request, silence)
            case ReadLine(stream, within):
                return stream.read_line(within)
            case CloseStream(stream):
                return stream.close()
            case Pause(seconds):
                return time.sleep(seconds)
            case RunFunction(function):
                return function()
            case Notify(listener, value):
                return listener(value)
            case RunProgram():
                return run_program(effect)
            case _:
                assert_never(effect)


def run_program(effect: RunProgram) -> ProgramResult:
    import subprocess  # few commands need it, and it is slow to load

    output = subprocess.PIPE if effect.capture_output else None
    process = subprocess.Popen(
        effect.arguments,
        stdin=subprocess.DEVNULL if effect.stdin is None else subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=dict(effect.environment),
    )
    with process:
        try:
            stdout, stderr = process.communicate(effect.stdin, effect.timeout)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise NotInTime(f"the command did not end within {effect.timeout:g} seconds") from error
        except BaseException:
            process.kill()
            raise
    return ProgramResult(process.returncode, stdout or b"", stderr or b"")
