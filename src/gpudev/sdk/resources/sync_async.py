"""One method for sync and async programs: written once as a routine, run by two drivers.

A resource is a class whose methods are `@api_method` or `@api_stream`, with two subclasses: a `SyncResource` and an
`AsyncResource`. Type checkers see the right return type of each.
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

# Runs routines on an event loop. Network waits run in threads; cancellation aborts the connection.


_T = TypeVar("_T")
_MAX_THREADS = 256
"""One per open stream; started when needed."""


class AsyncDriver:
    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="gpu-dev")
        self._streams: set[LineStream] = set()
        self._is_closed = False

    async def run(self, routine: Routine[_T]) -> _T:
        """Run to the end. Errors, including cancellation, are thrown into the routine, so that it can clean up."""
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
                result = await self._perform_effect(effect)
            except BaseException as error:  # noqa: BLE001 - the routine decides what it means
                failure = error

    def close(self) -> None:
        """Reject further calls and abort open streams."""
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
            case RunFunction(function):
                return await self._run_in_thread(function)
            case Notify(listener, value):
                returned = listener(value)
                return await returned if inspect.isawaitable(returned) else returned
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

    async def _run_in_thread(self, function: Callable[[], _T], abort: Callable[[], None] | None = None) -> _T:
        if self._is_closed:
            raise UsageError("this client is closed")
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await future
        except asyncio.CancelledError:
            if abort is not None:
                abort()
            task = asyncio.current_task()
            if self._is_closed and future.cancelled() and not (task is not None and task.cancelling()):
                # Closing the client cancelled the future before it got a thread; nobody cancelled the caller.
                raise UsageError("this client is closed") from None
            raise


async def run_to_completion(cleanup: Coroutine[Any, Any, _T]) -> _T:
    """Even if the caller is cancelled meanwhile; the cancellation is raised at the end."""
    task = asyncio.ensure_future(cleanup)
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
    """A source of items for a stream."""

    def next(self) -> Routine[_T_co | None]:
        """None: no more items."""
        ...

    def close(self) -> Routine[None]: ...


class Resource:
    """Base class of groups of API methods."""

    _client: ApiClient
    _session: ClientSession

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} holds connections and cannot be pickled: create one in each process")

    def _perform(self, routine: Routine[Any]) -> Any:
        raise NotImplementedError

    def _stream(self, source: ItemSource[Any]) -> Any:
        raise NotImplementedError


class SyncResource(Resource):
    def __init__(self, session: ClientSession, client: ApiClient, driver: SyncDriver) -> None:
        self._session = session
        self._client = client
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
    def __init__(self, session: ClientSession, client: ApiClient, driver: AsyncDriver) -> None:
        self._session = session
        self._client = client
        self._driver = driver

    def _perform(self, routine: Routine[_T]) -> Coroutine[Any, Any, _T]:
        return self._driver.run(routine)

    async def _stream(self, source: ItemSource[_T]) -> AsyncGenerator[_T, None]:
        try:
            while (item := await self._driver.run(source.next())) is not None:
                yield item
        finally:
            await self._driver.run(source.close())


class api_method(Generic[_P, _T]):  # noqa: N801 - used as a decorator
    """A method with one result."""

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


class api_stream(Generic[_P, _T]):  # noqa: N801 - used as a decorator
    """A method that yields items."""

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
