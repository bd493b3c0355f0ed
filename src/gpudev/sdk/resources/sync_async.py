"""Carries routines out on an event loop. What waits for the network waits in threads; whoever is cancelled hangs up."""

import asyncio
import inspect
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, assert_never

from gpudev.sdk.effects import (
    CloseStream,
    Effect,
    Notify,
    OpenStream,
    Pause,
    ProgramResult,
    ReadLine,
    Routine,
    RunFunction,
    RunProgram,
    Send,
)
from gpudev.sdk.errors import NotInTime, UsageError
from gpudev.sdk.http.transport import HttpRequest, HttpResponse, HttpTransport, LineStream, abort_connection

_T = TypeVar("_T")
_MAX_THREADS = 256
"""Each stream that is listened to has one; none is started before it is needed."""


class AsyncDriver:
    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="gpu-dev")
        self._streams: set[LineStream] = set()
        self._is_closed = False

    async def run(self, routine: Routine[_T]) -> _T:
        """To its end. What goes wrong, being cancelled too, is thrown into it, so that it can tidy up."""
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
                came = await self._perform_effect(effect)
            except BaseException as error:  # noqa: BLE001 - the routine decides what it means
                wrong = error

    def close(self) -> None:
        """Nothing more is asked; whoever still listens is told that it is cut."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.abort()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _perform_effect(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return await self._send(request)
            case OpenStream(request, silence):
                return await self._open(request, silence)
            case ReadLine(stream, within):
                return await self._run_in_thread(lambda: stream.read_line(within), stream.abort)
            case CloseStream(stream):
                self._streams.discard(stream)
                return stream.close()
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case RunFunction(act):
                return await self._run_in_thread(act)
            case Notify(listener, news):
                told = listener(news)
                return await told if inspect.isawaitable(told) else told
            case RunProgram():
                return await _run_program(effect)
            case _:
                assert_never(effect)

    async def _send(self, request: HttpRequest) -> HttpResponse:
        lines: list[socket.socket] = []

        def abort() -> None:
            for line in lines:
                abort_connection(line)

        return await self._run_in_thread(lambda: self._transport.send(request, lines.append), abort)

    async def _open(self, request: HttpRequest, silence: float) -> LineStream | HttpResponse:
        abandoned: list[bool] = []

        def open_stream() -> LineStream | HttpResponse:
            opened = self._transport.open_stream(request, silence)
            if abandoned and isinstance(opened, LineStream):
                opened.close()
            return opened

        opened = await self._run_in_thread(open_stream, lambda: abandoned.append(True))
        if isinstance(opened, LineStream):
            self._streams.add(opened)
        return opened

    async def _run_in_thread(self, act: Callable[[], _T], abort: Callable[[], None] | None = None) -> _T:
        if self._is_closed:
            raise UsageError("this client is closed")
        future = asyncio.get_running_loop().run_in_executor(self._threads, act)
        try:
            return await future
        except asyncio.CancelledError:
            if abort is not None:
                abort()
            task = asyncio.current_task()
            if self._is_closed and future.cancelled() and not (task is not None and task.cancelling()):
                # It had not got a thread yet: closing took its turn away, and nobody cancelled the caller.
                raise UsageError("this client is closed") from None
            raise


async def run_to_completion(tidying: Coroutine[Any, Any, _T]) -> _T:
    """However often the caller is cancelled meanwhile; that is told when it is done."""
    task = asyncio.ensure_future(tidying)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled() and task.exception() is None:
        raise cancelled
    return task.result()


async def _run_program(effect: RunProgram) -> ProgramResult:
    output = asyncio.subprocess.PIPE if effect.capture_output else None
    process = await asyncio.create_subprocess_exec(
        *effect.arguments,
        stdin=asyncio.subprocess.DEVNULL if effect.stdin is None else asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=dict(effect.environment),
    )
    try:
        async with asyncio.timeout(effect.timeout):
            stdout, stderr = await process.communicate(effect.stdin)
    except TimeoutError as error:
        await _kill(process)
        raise NotInTime(f"the command did not end within {effect.timeout:g} seconds") from error
    except BaseException:
        await _kill(process)
        raise
    assert process.returncode is not None
    return ProgramResult(process.returncode, stdout or b"", stderr or b"")


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
