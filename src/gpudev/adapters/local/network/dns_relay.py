"""Passes name queries from dev servers on to name servers that only the host can reach.

It listens on the host's end of each network, while the control plane runs. It changes nothing in queries and answers.
"""

import asyncio
import contextlib
from ipaddress import IPv4Address

import structlog

log = structlog.get_logger(__name__)
DNS_PORT = 53
_ANSWER_TIMEOUT_S = 3.0
_IDLE_TIMEOUT_S = 10.0
_MAX_QUERIES = 200
"""At once, for each dev server."""
_MAX_QUERIES_PER_SECOND = 300
"""For each dev server. The relay runs in the processor, which plans for everybody."""
_MAX_CONNECTIONS = 20
_MIN_MESSAGE_BYTES = 12
_CHUNK_BYTES = 65_536


class DnsRelay:
    def __init__(self, upstreams: tuple[str, ...]) -> None:
        self._upstreams = upstreams
        self._endpoints: dict[IPv4Address, _Endpoint] = {}
        self._starting: set[asyncio.Task[None]] = set()

    def add(self, gateway: IPv4Address) -> None:
        """Serve on the gateway of a network. A network with the same number later is served, too."""
        if gateway not in self._endpoints:
            endpoint = self._endpoints[gateway] = _Endpoint(self._upstreams)
            task = asyncio.create_task(self._start(endpoint, gateway))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._starting)
        for endpoint in self._endpoints.values():
            await endpoint.close()
        self._endpoints.clear()

    async def _start(self, endpoint: "_Endpoint", gateway: IPv4Address) -> None:
        try:
            await endpoint.start(gateway)
        except OSError as error:
            log.warning("dns_relay.failed", address=str(gateway), error=str(error))
            await endpoint.close()
            del self._endpoints[gateway]  # its interface may be gone: the next network there is served again


class _Endpoint(asyncio.DatagramProtocol):
    """The relay of one network."""

    def __init__(self, upstreams: tuple[str, ...]) -> None:
        self._upstreams = upstreams
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None] | None] = set()
        self._second, self._asked = 0, 0
        self._server: asyncio.Server | None = None
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self, gateway: IPv4Address) -> None:
        """Raises OSError."""
        address = (str(gateway), DNS_PORT)
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=address)
        self._server = await asyncio.start_server(self._serve_connection, *address)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._server is not None:
            self._server.close()
        running = [task for task in (*self._tasks, *self._connections) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) < _MIN_MESSAGE_BYTES or len(self._tasks) >= _MAX_QUERIES or self._asks_too_often():
            return  # whoever asks, asks again
        task = asyncio.create_task(self._answer(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _asks_too_often(self) -> bool:
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._asked = second, 0
        self._asked += 1
        return self._asked > _MAX_QUERIES_PER_SECOND

    async def _answer(self, query: bytes, client: tuple[str, int]) -> None:
        for upstream in self._upstreams:
            with contextlib.suppress(OSError, TimeoutError):
                answer = await _ask(upstream, query)
                if self._transport is not None:
                    self._transport.sendto(answer, client)
                return

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._connections.add(task)
        try:
            if len(self._connections) <= _MAX_CONNECTIONS:
                await self._pass_on(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for upstream in self._upstreams:
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    upstream_reader, upstream_writer = await asyncio.open_connection(upstream, DNS_PORT)
            except OSError:  # TimeoutError is one
                continue
            try:
                await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))
            finally:
                upstream_writer.close()
            return


async def _ask(upstream: str, query: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    received: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Answer(query[:2], received), remote_addr=(upstream, DNS_PORT)
    )
    try:
        transport.sendto(query)
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await received
    finally:
        transport.close()


class _Answer(asyncio.DatagramProtocol):
    def __init__(self, query_id: bytes, received: "asyncio.Future[bytes]") -> None:
        self._query_id = query_id
        self._received = received

    def datagram_received(self, data: bytes, _addr: tuple[str, int]) -> None:
        if data[:2] == self._query_id and not self._received.done():
            self._received.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._received.done():
            self._received.set_exception(exc)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the end, an error, or a long silence."""
    with contextlib.suppress(OSError, TimeoutError):
        while True:
            async with asyncio.timeout(_IDLE_TIMEOUT_S):
                data = await reader.read(_CHUNK_BYTES)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
