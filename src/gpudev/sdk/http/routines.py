"""Routines: effects as data, and the driver that runs them in the calling thread.

A routine is a generator. It yields one of these, is sent what came of it, and returns what it was for; a failure is
thrown into it. Whoever drives it (`blocking`, `awaiting`) carries the effects out, so that every rule of the client is
written once and knows neither threads nor event loops.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, assert_never

from gpudev.sdk.errors import NotInTime, UsageError
from gpudev.sdk.http.transport import HttpRequest, HttpTransport, LineStream

_T = TypeVar("_T")


class Send(NamedTuple):
    """Comes to an Answer, or Unreachable is thrown."""

    request: HttpRequest


class OpenStream(NamedTuple):
    """Comes to a Stream, or to the Answer of a server that does not agree. After `silence` seconds it is dead."""

    request: HttpRequest
    silence: float


class ReadLine(NamedTuple):
    """Comes to bytes, or to None at the end. `within`: seconds that it may take."""

    stream: LineStream
    within: float | None


class CloseStream(NamedTuple):
    stream: LineStream


class Pause(NamedTuple):
    seconds: float


class RunFunction(NamedTuple):
    """Something on this machine that may take a while. Comes to what it returns."""

    act: Callable[[], Any]


class Notify(NamedTuple):
    """The person's own function is told; one that is asynchronous is awaited where that is possible."""

    listener: Callable[[Any], Any]
    value: Any


class RunProgram(NamedTuple):
    """A program on this machine. Comes to Executed; NotInTime is thrown when it takes too long."""

    arguments: Sequence[str]
    stdin: bytes | None
    """Its standard input; None: nothing."""
    capture_output: bool
    """Its output is collected; else it goes where ours goes."""
    timeout: float | None
    environment: Mapping[str, str]


class ProgramResult(NamedTuple):
    exit_code: int
    stdout: bytes
    stderr: bytes


Effect: TypeAlias = Send | OpenStream | ReadLine | CloseStream | Pause | RunFunction | Notify | RunProgram
Routine: TypeAlias = Generator[Effect, Any, _T]


# The driver for blocking programs: runs routines in the calling thread.


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
        """To its end. What goes wrong, Ctrl-C too, is thrown into it, so that it can tidy up."""
        came: Any = None
        wrong: BaseException | None = None
        while True:
            try:
                effect = routine.send(came) if wrong is None else routine.throw(wrong)
            except StopIteration as end:
                result: _T = end.value
                return result
            came, wrong = None, None
            try:
                came = self._perform_effect(effect)
            except BaseException as error:  # noqa: BLE001 - the routine decides what it means
                wrong = error

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
            case RunFunction(act):
                return act()
            case Notify(listener, news):
                return listener(news)
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
