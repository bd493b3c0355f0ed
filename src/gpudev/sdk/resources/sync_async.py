"""One method for sync and async programs: written once as a routine, run by two drivers.

A group of methods is a class whose methods are `@offered` or `@streamed`; it is then made twice, once as a `Blocking`
and once as an `Awaiting` one. Type checkers see for each what it gives.
"""

import asyncio
import inspect
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, assert_never, overload

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.errors import NotInTime, UsageError
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.routines import (
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
    SyncDriver,
)
from gpudev.sdk.http.transport import HttpRequest, HttpResponse, HttpTransport, LineStream, abort_connection

# Carries routines out on an event loop. What waits for the network waits in threads; whoever is cancelled hangs up.


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


_P = ParamSpec("_P")
_T_co = TypeVar("_T_co", covariant=True)


class ItemSource(Protocol[_T_co]):
    """Things that come one after another."""

    def next(self) -> Routine[_T_co | None]:
        """None: that was all."""
        ...

    def close(self) -> Routine[None]: ...


class Resource:
    """What a method may use."""

    _client: ApiClient
    _session: ClientSession

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} holds connections and cannot be pickled: make one in each process")

    def _perform(self, routine: Routine[Any]) -> Any:
        raise NotImplementedError

    def _stream(self, source: ItemSource[Any]) -> Any:
        raise NotImplementedError


class SyncResource(Resource):
    def __init__(self, session: ClientSession, core: ApiClient, driver: SyncDriver) -> None:
        self._session = session
        self._client = core
        self._driver = driver

    def _perform(self, routine: Routine[_T]) -> _T:
        self._driver.check_open()
        return self._driver.run(routine)

    def _stream(self, source: ItemSource[_T]) -> Generator[_T, None, None]:
        self._driver.check_open()
        try:
            while (item := self._driver.run(source.next())) is not None:
                yield item
        finally:
            self._driver.run(source.close())


class AsyncResource(Resource):
    def __init__(self, session: ClientSession, core: ApiClient, driver: AsyncDriver) -> None:
        self._session = session
        self._client = core
        self._driver = driver

    def _perform(self, routine: Routine[_T]) -> Coroutine[Any, Any, _T]:
        return self._driver.run(routine)

    async def _stream(self, source: ItemSource[_T]) -> AsyncGenerator[_T, None]:
        try:
            while (item := await self._driver.run(source.next())) is not None:
                yield item
        finally:
            await self._driver.run(source.close())


class api_method(Generic[_P, _T]):  # noqa: N801 - it is read as a decorator
    """A method that comes to one thing."""

    def __init__(self, routine: Callable[Concatenate[Any, _P], Routine[_T]]) -> None:
        self.routine = routine
        update_wrapper(self, routine)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> "api_method[_P, _T]": ...
    @overload
    def __get__(self, instance: SyncResource, owner: type) -> Callable[_P, _T]: ...
    @overload
    def __get__(self, instance: AsyncResource, owner: type) -> Callable[_P, Coroutine[Any, Any, _T]]: ...
    def __get__(self, instance: Resource | None, owner: type) -> Any:
        if instance is None:
            return self

        def call(*arguments: _P.args, **options: _P.kwargs) -> Any:
            return instance._perform(self.routine(instance, *arguments, **options))

        return update_wrapper(call, self.routine)


class api_stream(Generic[_P, _T]):  # noqa: N801 - it is read as a decorator
    """A method that comes to many things, one after another."""

    def __init__(self, source: Callable[Concatenate[Any, _P], ItemSource[_T]]) -> None:
        self.routine = source
        update_wrapper(self, source)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type) -> "api_stream[_P, _T]": ...
    @overload
    def __get__(self, instance: SyncResource, owner: type) -> Callable[_P, Generator[_T, None, None]]: ...
    @overload
    def __get__(self, instance: AsyncResource, owner: type) -> Callable[_P, AsyncGenerator[_T, None]]: ...
    def __get__(self, instance: Resource | None, owner: type) -> Any:
        if instance is None:
            return self

        def call(*arguments: _P.args, **options: _P.kwargs) -> Any:
            return instance._stream(self.routine(instance, *arguments, **options))

        return update_wrapper(call, self.routine)
