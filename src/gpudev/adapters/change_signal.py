"""Change signal: notifies any number of subscribers.

A change between two waits of a subscriber is not lost. Several changes count as one.
"""

import asyncio
from collections.abc import AsyncIterator
from weakref import WeakSet


class ChangeSignal:
    def __init__(self) -> None:
        self._listeners: WeakSet[_Listener] = WeakSet()

    def subscribe(self) -> AsyncIterator[None]:
        listener = _Listener()
        self._listeners.add(listener)
        return listener

    def notify(self) -> None:
        for listener in tuple(self._listeners):
            listener.changed.set()

    def close(self) -> None:
        for listener in tuple(self._listeners):
            listener.is_closed = True
            listener.changed.set()


class _Listener(AsyncIterator[None]):
    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_closed = False

    async def __anext__(self) -> None:
        await self.changed.wait()
        self.changed.clear()
        if self.is_closed:
            self.changed.set()
            raise StopAsyncIteration
