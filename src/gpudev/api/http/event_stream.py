"""Server-sent events: a stream ends with its source, its reader, or its reader's permission."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpudev.api.http.responses import to_json
from gpudev.wire.reservations import JobEvent, JobView

KEEP_ALIVE_SECONDS = 15.0
AUTHORIZATION_CHECK_SECONDS = 0.3
_CLOSE_SECONDS = 0.5
_LAST_MESSAGE: Message = {"type": "http.response.body", "body": b"", "more_body": False}
StreamItem = JobView | JobEvent | None


class EventStream(Response):
    """Sends items as they come; None is silence, which is broken by a comment so that nothing on the way gives up.

    Leaving closes the source before the request ends: whatever it holds is free again.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        items: AsyncGenerator[StreamItem, None],
        is_allowed: Callable[[], Awaitable[bool]],
        slot: AbstractContextManager[None],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        """`is_allowed` is asked before each word and every moment in between: a key may be revoked in the middle.
        `place` is held while it lasts."""
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._items = items
        self._is_allowed = is_allowed
        self._slot = slot
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            streaming = asyncio.create_task(self._stream(send))
            leaving = asyncio.create_task(_wait_for_disconnect(receive))
            try:
                await self._watch({streaming, leaving})
            finally:
                streaming.cancel()
                leaving.cancel()
                await asyncio.wait({streaming, leaving})
        if not streaming.cancelled():
            streaming.result()
            return
        with suppress(TimeoutError):  # whoever does not read has no goodbye; the connection is cut
            async with asyncio.timeout(_CLOSE_SECONDS):
                await send(_LAST_MESSAGE)

    async def _watch(self, tasks: set[asyncio.Task[None]]) -> None:
        """Until one of them is done, or the reader may read no more."""
        while True:
            done, _ = await asyncio.wait(
                tasks, timeout=AUTHORIZATION_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if done or not await self._is_allowed():
                return

    async def _stream(self, send: Send) -> None:
        said = time.monotonic()
        async with aclosing(self._items):
            async for item in self._items:
                if item is not None:
                    message = encode_event(item)
                elif time.monotonic() - said >= self._keep_alive_seconds:
                    message = b": still here\n\n"
                else:
                    continue
                if not await self._is_allowed():
                    break
                await send({"type": "http.response.body", "body": message, "more_body": True})
                said = time.monotonic()
        await send(_LAST_MESSAGE)


def encode_event(item: JobView | JobEvent) -> bytes:
    data = b"data: " + to_json(item) + b"\n\n"
    if isinstance(item, JobView):
        return b"event: job\n" + data
    return b"event: event\nid: %d\n" % item.event_id + data


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
