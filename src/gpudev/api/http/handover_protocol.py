"""HTTP connections of which some requests are served by another process: API and proxy on one machine.

A connection is passed on between two requests, as soon as the first line of the next one names a path of the other
process, and with all bytes from there on. So neither process parses what belongs to the other. A browser that
alternates between API and Jupyter on one connection has it passed there and back. A request that arrives before the
previous one is answered (pipelining, which browsers do not use) cannot be passed on: the app answers it with an error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast
from urllib.parse import unquote

import httptools

from gpudev.api.http.connection_limits import CONNECTION_LIMITS, ConnectionLimits, LimitedHttpProtocol
from gpudev.http_edge.connection_handover import ClientOrigin, ConnectionSender, ReceivedConnection

_MAX_LINE_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class HandoverRule:
    sender: ConnectionSender
    """To the other process."""
    is_elsewhere: Callable[[str], bool]
    """Whether the other process serves this path."""
    passes_upgrades: bool
    """Whether the other process serves all WebSockets."""


class HandoverHttpProtocol(LimitedHttpProtocol):
    rule: ClassVar[HandoverRule]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._received: ReceivedConnection | None = None
        self._has_begun = True
        self._serves_next = False
        self._held = b""
        """The beginning of a request whose line is not complete."""

    def take_over(self, received: ReceivedConnection) -> None:
        """Before the connection is made. The sender has decided where its first request belongs."""
        self._received = received
        self._has_begun = False
        self._serves_next = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._received is not None:
            origin = self._received.origin
            self.client, self.scheme = origin.client, cast(Literal["http", "https"], origin.scheme)
            peer = origin.client[0] if origin.client else None
            self.ws_protocol_class = cast(Any, partial(cast(Any, self.ws_protocol_class), peer=peer))
            # Later: some event loops begin to read after this call, whatever is paused within it.
            self.loop.call_soon(self._begin, self._received.data)

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._held += data
        elif self._is_between_requests():
            self._held += data
            self._examine_request()
        else:
            super().data_received(data)

    def handle_websocket_upgrade(self) -> None:
        if self.rule.passes_upgrades and self._is_answered() and self._pass_on(self._request_head()):
            return
        super().handle_websocket_upgrade()

    def _begin(self, data: bytes) -> None:
        self._has_begun = True
        if not self.transport.is_closing():
            self._held = data + self._held
            self._examine_request()

    def _examine_request(self) -> None:
        if not self._held:
            return
        path = None if self._serves_next else find_requested_path(self._held[:_MAX_LINE_BYTES])
        if path is None and not self._serves_next and len(self._held) < _MAX_LINE_BYTES:
            self._unset_keepalive_if_required()
            if self._timer is None:
                self._wait_for("headers")
            return
        data, self._held, self._serves_next = self._held, b"", False
        if path is None or not self.rule.is_elsewhere(path) or not self._pass_on(data):
            super().data_received(data)

    def _is_between_requests(self) -> bool:
        return not (self._is_receiving or self._is_rejected or self._has_upgraded) and self._is_answered()

    def _is_answered(self) -> bool:
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _pass_on(self, data: bytes) -> bool:
        if self.transport.is_closing():
            return False
        if not self.rule.sender.pass_on(self.transport, ClientOrigin(self.client, self.scheme or "http"), data):
            return False
        self._has_upgraded = True  # nothing more is read here
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        return True

    def _request_head(self) -> bytes:
        """As the parser has read it: the bytes themselves are gone."""
        lines = [b"%s %s HTTP/1.1" % (self.scope["method"].encode(), self.url)]
        lines += [b"%s: %s" % header for header in self.scope["headers"]]
        return b"\r\n".join([*lines, b"", b""])


def find_requested_path(data: bytes) -> str | None:
    """The path of the request that begins here, decoded as uvicorn does. Empty: it has none. None: the first line is
    not complete."""
    line, is_complete, _ = data.lstrip(b"\r\n").partition(b"\n")
    if not is_complete:
        return None
    words = line.split(b" ")
    try:
        path = httptools.parse_url(words[1]).path or b""
        return unquote(path.decode("ascii"))
    except (IndexError, UnicodeDecodeError, httptools.HttpParserError):
        return ""  # the parser answers it


def handover_http_protocol(
    rule: HandoverRule, limits: ConnectionLimits = CONNECTION_LIMITS
) -> type[HandoverHttpProtocol]:
    """The protocol class for uvicorn."""
    return type("HandoverHttp", (HandoverHttpProtocol,), {"rule": rule, "limits": limits})
