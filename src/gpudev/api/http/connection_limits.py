"""Limits on slow and endless requests, per connection.

uvicorn's own protocol waits forever for what a client has begun to send. This one gives it so long for the headers
(from when the connection was made, or the first byte after a pause) and so long for the rest, however it trickles in.
Only a body that somebody reads, and that keeps coming as fast as a slow line carries it, has the time that its size
needs.
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
"""Bytes a second."""
_REASONS = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a request may take to arrive, and how large its head may be. Not a setting: slow lines fit in well."""

    header_timeout: timedelta = timedelta(seconds=10)
    """For a request's headers, also the first ones."""
    body_timeout: timedelta = timedelta(seconds=30)
    """For the rest; a large body that keeps coming has longer."""
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
            self._wait_for("headers")  # empty lines are no request, and do not keep a connection either

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
        """What comes behind a body is no header, whatever it is called: proxies check and add to those in front alone,
        and uvicorn would put it among them."""
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
        """Lengths of chunks, and what may stand behind the last one: the parser keeps that in memory, and nobody reads
        it. Chunks of a single byte are foolish, but allowed."""
        framing = self._bytes_after_head - self._body_bytes
        allowed = 2 * self.limits.max_header_bytes + min(_FRAMING_PER_BYTE * self._body_bytes, _MAX_FRAMING)
        if framing > allowed:
            self._reject(431, f"what is around the body is larger than {allowed} bytes")

    def _wait_for(self, what: str) -> None:
        self._stop_waiting()
        self._waiting_since = self.loop.time()
        patience = self.limits.header_timeout if what == "headers" else self.limits.body_timeout
        self._timer = self.loop.call_later(patience.total_seconds(), self._on_timeout, what, patience.total_seconds())

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self, what: str, seconds: float) -> None:
        is_read = what == "body" and self.cycle is not None and not self.cycle.response_complete
        earned = self._waiting_since + seconds + self._body_bytes / _MIN_BYTES_PER_SECOND
        if is_read and self.loop.time() < earned:
            self._timer = self.loop.call_at(earned, self._on_timeout, what, seconds)
            return
        self._reject(408, f"the request's {what} did not come within {seconds:g} seconds")

    def _reject(self, status: int, why: str) -> None:
        """Says why, if no answer has begun, and closes. Whoever reads the body learns that its client is gone."""
        self._is_rejected = True
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = problem_response(None, status, _REASONS[status].decode().lower().replace(" ", "_"), why).body
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (status, _REASONS[status], len(body), bytes(body))
            )
        self.transport.close()


def limited_http_protocol(limits: ConnectionLimits = CONNECTION_LIMITS) -> type[LimitedHttpProtocol]:
    """What uvicorn is to make connections with."""
    return type("GuardedHttp", (LimitedHttpProtocol,), {"limits": limits})
