"""Carries routines out where one may wait: in the thread that asks."""

import time
from typing import Any, TypeVar, assert_never

from gpudev.sdk.effects import (
    CloseStream,
    Effect,
    Notify,
    OpenStream,
    Pause,
    ReadLine,
    Routine,
    RunFunction,
    RunProgram,
    Send,
)
from gpudev.sdk.errors import UsageError
from gpudev.sdk.http.transport import HttpTransport

_T = TypeVar("_T")


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
                from gpudev.sdk.executing import run_program  # rarely needed, and dear to load

                return run_program(effect)
            case _:
                assert_never(effect)
