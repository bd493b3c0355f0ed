"""What a routine asks for: requests, pauses and commands as data.

A routine is a generator. It yields one of these, is sent what came of it, and returns what it was for; a failure is
thrown into it. Whoever drives it (`blocking`, `awaiting`) carries the effects out, so that every rule of the client is
written once and knows neither threads nor event loops.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gpudev.sdk.http.transport import HttpRequest, LineStream

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
