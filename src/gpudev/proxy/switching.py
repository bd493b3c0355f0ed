"""A connection that asks for a WebSocket, until it is known whose that is."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpudev.proxy.jupyter.headers import find_jupyter_path

if TYPE_CHECKING:
    from gpudev.proxy.ssh.tunnel import Tunnel


class WebSocketSwitch(asyncio.Protocol):
    """Hands everything on from the first request line; soon the web server's transport speaks to the right one
    itself."""

    def __init__(self, ssh: "Callable[[], Tunnel]", jupyter: Callable[[], asyncio.Protocol]) -> None:
        self._ssh = ssh
        self._jupyter = jupyter
        self._transport: asyncio.BaseTransport
        self._chosen: asyncio.Protocol | Tunnel | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._chosen is None:
            self._chosen = self._choose(data)
            self._chosen.connection_made(self._transport)
            # Whoever made us sets us as the transport's protocol after this.
            asyncio.get_running_loop().call_soon(self._hand_over, self._chosen)
        self._chosen.data_received(data)

    def _choose(self, head: bytes) -> "asyncio.Protocol | Tunnel":
        """The web server gives us the whole head at once."""
        words = head.partition(b"\r\n")[0].split(b" ")
        path = words[1].partition(b"?")[0].decode("latin-1") if len(words) > 1 else ""
        return self._ssh() if find_jupyter_path(path) is None else self._jupyter()

    def _hand_over(self, chosen: asyncio.BaseProtocol) -> None:
        if not self._transport.is_closing():
            self._transport.set_protocol(chosen)

    def eof_received(self) -> bool | None:
        return self._chosen.eof_received() if self._chosen is not None else None

    def pause_writing(self) -> None:
        if self._chosen is not None:
            self._chosen.pause_writing()

    def resume_writing(self) -> None:
        if self._chosen is not None:
            self._chosen.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._chosen is not None:
            self._chosen.connection_lost(error)
