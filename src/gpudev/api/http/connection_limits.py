"""Time and size limits on incoming requests, per connection.

uvicorn's own protocol waits forever for the rest of a request. This one has a time-out for the headers (from the
connection's start, or the first byte of the next request) and one for the body. A body that is being read and arrives
at a minimum rate gets as much time as its size needs.
"""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpudev.api.http.responses import problem_response
from gpudev.http_edge.error_responses import allow_abort

_FRAMING_PER_BYTE = 8
_MAX_FRAMING = 8 * 2**20
_MIN_BYTES_PER_SECOND = 16 * 1024
_REASONS = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a request may take to arrive, and how large its headers may be. Not a setting: slow networks fit in."""

    header_timeout: timedelta = timedelta(seconds=10)
    """For the headers of each request on a connection."""
    body_timeout: timedelta = timedelta(seconds=30)
    """For the body; a large one that keeps arriving has longer."""
    max_header_bytes: int = 32 * 1024


CONNECTION_LIMITS = ConnectionLimits()


class LimitedHttpProtocol(HttpToolsProtocol):
    limits: ClassVar[ConnectionLimits] = CONNECTION_LIMITS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since = 0.0
        self._is_receiving = False
        self._is_in_head = False
        self._is_rejected = False
        self._has_upgraded = False
        self._head_bytes = 0
        self._bytes_after_head = self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for("headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return
        self._bytes_after_head += len(data)
        super().data_received(data)
        if self._has_upgraded or self._is_rejected:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes:
                self._reject(431, f"the headers are larger than {self.limits.max_header_bytes} bytes")
        elif self._is_receiving:
            self._check_framing()
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for("headers")  # empty lines before a request do not keep a connection open

    def handle_websocket_upgrade(self) -> None:
        self._stop_waiting()
        self._has_upgraded = True
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        allow_abort(cast(MutableMapping[str, Any], self.scope), self.transport)
        self._is_receiving = self._is_in_head = True
        self._head_bytes = self._bytes_after_head = self._body_bytes = 0
        if self._timer is None:
            self._wait_for("headers")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignores trailers: uvicorn would add them to the headers, but proxies check only those before the body."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes:
            self._reject(431, f"the headers are larger than {self.limits.max_header_bytes} bytes")
            return
        self._wait_for("body")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._is_rejected:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        self._stop_waiting()
        if not self._is_rejected:
            super().on_message_complete()

    def _check_framing(self) -> None:
        """Chunk lengths and trailers, which the parser keeps in memory. One-byte chunks are inefficient but allowed."""
        framing = self._bytes_after_head - self._body_bytes
        allowed = 2 * self.limits.max_header_bytes + min(_FRAMING_PER_BYTE * self._body_bytes, _MAX_FRAMING)
        if framing > allowed:
            self._reject(431, f"the body's chunk framing is larger than {allowed} bytes")

    def _wait_for(self, part: str) -> None:
        self._stop_waiting()
        self._waiting_since = self.loop.time()
        timeout = self.limits.header_timeout if part == "headers" else self.limits.body_timeout
        self._timer = self.loop.call_later(timeout.total_seconds(), self._on_timeout, part, timeout.total_seconds())

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self, part: str, seconds: float) -> None:
        is_read = part == "body" and self.cycle is not None and not self.cycle.response_complete
        deadline = self._waiting_since + seconds + self._body_bytes / _MIN_BYTES_PER_SECOND
        if is_read and self.loop.time() < deadline:
            self._timer = self.loop.call_at(deadline, self._on_timeout, part, seconds)
            return
        self._reject(408, f"the request's {part} did not arrive within {seconds:g} seconds")

    def _reject(self, status: int, reason: str) -> None:
        """Sends the error if no response has begun, and closes the connection. The body's reader gets a disconnect."""
        self._is_rejected = True
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = problem_response(None, status, _REASONS[status].decode().lower().replace(" ", "_"), reason).body
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (status, _REASONS[status], len(body), bytes(body))
            )
        self.transport.close()


def limited_http_protocol(limits: ConnectionLimits = CONNECTION_LIMITS) -> type[LimitedHttpProtocol]:
    """The protocol class for uvicorn."""
    return type("GuardedHttp", (LimitedHttpProtocol,), {"limits": limits})
