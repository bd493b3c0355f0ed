"""One method for two kinds of programs: written once as a routine, it blocks where it may and is awaited elsewhere.

A group of methods is a class whose methods are `@offered` or `@streamed`; it is then made twice, once as a `Blocking`
and once as an `Awaiting` one. Type checkers see for each what it gives.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from gpudev.sdk.client_session import ClientSession
from gpudev.sdk.effects import Routine
from gpudev.sdk.http.api_client import ApiClient
from gpudev.sdk.http.routines import SyncDriver
from gpudev.sdk.resources.sync_async import AsyncDriver

_P = ParamSpec("_P")
_T = TypeVar("_T")
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
