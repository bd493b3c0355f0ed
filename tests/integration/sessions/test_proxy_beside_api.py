"""API and proxy behind one port, as on one machine: what a client meets on one connection, whichever of them serves."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from gpudev.adapters.tls import ensure_certificate
from gpudev.bootstrap.listeners import GracefulServer, serve_tls_listener
from gpudev.bootstrap.proxy import JupyterProxy
from gpudev.http_edge.handover_sockets import API_SOCKET, PROXY_SOCKET, is_received
from gpudev.proxy.ssh.sessions import SshSessions
from gpudev.settings import RequestGuardSettings, Settings
from support.api.serving import port_of
from support.polling import eventually_async
from support.ports import free_port
from support.sessions.lone_proxy import make_proxy
from support.sessions.proxy_beside_api import running_api, running_proxy
from support.sessions.tiny_pieces import JOB, SECRET

JUPYTER = f"/v1/jobs/{JOB}/jupyter/lab"
COOKIE = f"Cookie: gpudev_jupyter={SECRET}\r\n"
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, text: str | bytes) -> None:
        self.writer.write(text if isinstance(text, bytes) else text.encode())
        await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(first.split(" ")[1]), headers, body)

    async def get(self, path: str, more: str = COOKIE) -> Answer:
        await self.send(f"GET {path} HTTP/1.1\r\nHost: gpu.example\r\n{more}\r\n")
        return await self.answer()

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            return await self.reader.read() == b""


@dataclass
class Machine:
    folder: Path
    api: GracefulServer
    app: ASGIApp
    settings: Settings
    jupyter: JupyterProxy
    sessions: SshSessions
    served: list[str]
    """What the API's own app was asked."""

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(self.api))
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def proxy(self) -> AsyncIterator[GracefulServer]:
        async with running_proxy(self.jupyter, self.sessions, self.folder, RequestGuardSettings()) as server:
            yield server


async def play_dev_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Jupyter, which answers how much it was sent; or an SSH server, which says everything back."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        data = await reader.read(65536)
        if data.startswith((b"GET", b"POST")):
            while b"\r\n\r\n" not in data:
                data += await reader.read(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"content-length" in line), 0)
            body += await reader.readexactly(length - len(body))
            said = f"jupyter got {len(body)}".encode()
            data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said)
        while data:
            writer.write(data)
            await writer.drain()
            data = await reader.read(65536)
    writer.close()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    served: list[str] = []

    async def api(request: Request) -> JSONResponse:
        body = await request.body()
        served.append(request.url.path)
        client = request.client
        return JSONResponse({"client": client and client.host, "scheme": request.url.scheme, "length": len(body)})

    app = Starlette(routes=[Route("/{path:path}", api, methods=["GET", "POST"])])
    settings = replace(Settings(), api_port=0, state_dir=tmp_path)
    dev_server = await asyncio.start_server(play_dev_server, "127.0.0.1", 0)
    jupyter, sessions, _ = make_proxy(dev_server.sockets[0].getsockname()[1])
    folder = tmp_path / "run"
    folder.mkdir()
    async with running_api(app, folder, settings) as server:
        yield Machine(folder, server, app, settings, jupyter, sessions, served)
    await sessions.close()
    dev_server.close()


async def test_a_connection_alternates_between_api_and_jupyter(machine: Machine) -> None:
    async with machine.proxy(), machine.client() as client:
        for _ in range(3):
            assert (await client.get("/v1/jobs")).status == 200
            for _ in range(2):
                assert (await client.get(JUPYTER)).body == b"jupyter got 0"
    assert machine.served == ["/v1/jobs"] * 3


async def test_only_the_line_of_a_request_is_needed(machine: Machine) -> None:
    """However it is cut."""
    async with machine.proxy(), machine.client() as client:
        assert (await client.get("/v1/jobs")).status == 200
        for piece in ("\r\n", "GE", f"T {JUPYTER}?a=b HT", "TP/1.1\r", "\nHost: gpu.example\r\n", COOKIE, "\r\n"):
            await client.send(piece)
            await asyncio.sleep(0)
        assert (await client.answer()).body == b"jupyter got 0"
    assert machine.served == ["/v1/jobs"]


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
async def test_a_body_arrives_whole_however_much_of_it_the_api_has_read(machine: Machine, size: int) -> None:
    head = f"POST {JUPYTER} HTTP/1.1\r\nHost: gpu.example\r\nContent-Length: {size}\r\n{COOKIE}\r\n".encode()
    async with machine.proxy(), machine.client() as client:
        for _ in range(2):
            await client.send(head + b"x" * size)
            assert (await client.answer()).body == f"jupyter got {size}".encode()
            await client.send(head.replace(JUPYTER.encode(), b"/v1/jobs") + b"x" * size)
            assert f'"length":{size}'.encode() in (await client.answer()).body
    assert machine.served == ["/v1/jobs"] * 2


async def test_an_ssh_session_is_served_by_the_proxy(machine: Machine) -> None:
    head = f"GET /v1/jobs/{JOB}/ssh HTTP/1.1\r\nHost: gpu.example\r\nAuthorization: Bearer {SECRET}\r\n{UPGRADE}\r\n"
    async with machine.proxy(), machine.client() as client:
        await client.send(head)
        assert (await client.answer()).status == 101
        await client.send(b"\x82\x85\0\0\0\0hello")
        assert await client.reader.readexactly(7) == b"\x82\x05hello"
        assert not machine.api.server_state.connections
        assert len(machine.sessions) == 1


async def test_a_session_outlives_the_api(machine: Machine) -> None:
    head = f"GET /v1/jobs/{JOB}/ssh HTTP/1.1\r\nHost: gpu.example\r\nAuthorization: Bearer {SECRET}\r\n{UPGRADE}\r\n"
    async with machine.proxy(), machine.client() as client:
        await client.send(head)
        assert (await client.answer()).status == 101
        machine.api.should_exit = True
        await eventually_async(lambda: not machine.api.servers[0].is_serving())
        await client.send(b"\x82\x85\0\0\0\0hello")
        assert await client.reader.readexactly(7) == b"\x82\x05hello"


async def test_a_missing_proxy_is_an_error_to_try_again_after(machine: Machine) -> None:
    async with machine.client() as client:
        answer = await client.get(JUPYTER)
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert answer.headers["content-type"] == "application/problem+json"
        assert b"the proxy is restarting" in answer.body
        assert await client.is_closed()
    async with machine.client() as client:
        page = await client.get(JUPYTER, "Accept: text/html\r\n")
        assert page.status == 503
        assert b'http-equiv="refresh"' in page.body
    for path in (f"/v1/jobs/{JOB}/ssh", JUPYTER):
        async with machine.client() as client:
            answer = await client.get(path, UPGRADE)
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")
            assert answer.headers["content-type"] == "application/problem+json"
            assert await client.is_closed()
    assert machine.served == []
    async with machine.proxy(), machine.client() as client:  # once it is there
        assert (await client.get(JUPYTER)).status == 200


async def test_a_killed_proxy_left_its_socket_and_the_next_one_replaces_it(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(machine.folder / PROXY_SOCKET))
    async with machine.client() as client:
        assert (await client.get(JUPYTER)).status == 503
    async with machine.proxy(), machine.client() as client:
        assert (machine.folder / PROXY_SOCKET).stat().st_mode & 0o777 == 0o600
        assert is_received(machine.folder / PROXY_SOCKET)
        assert (await client.get(JUPYTER)).status == 200
    assert not (machine.folder / PROXY_SOCKET).exists()


async def test_the_folder_may_have_a_longer_path_than_a_sockets_address(machine: Machine) -> None:
    folder = machine.folder / ("long" * 30)
    folder.mkdir()
    async with running_api(machine.app, folder, machine.settings) as api:
        there = replace(machine, folder=folder, api=api)
        async with there.proxy(), there.client() as client:
            assert (await client.get(JUPYTER)).status == 200
            assert (await client.get("/v1/jobs")).status == 200
            assert is_received(folder / PROXY_SOCKET)


async def test_a_proxy_that_stops_gets_no_more_connections(machine: Machine) -> None:
    async with machine.proxy() as proxy:
        proxy.handle_exit(15, None)
        async with machine.client() as client:
            assert (await client.get(JUPYTER)).status == 503


async def test_a_request_for_an_api_that_is_not_there_is_an_error_too(machine: Machine) -> None:
    async with machine.proxy(), machine.client() as client:
        assert (await client.get(JUPYTER)).status == 200
        (machine.folder / API_SOCKET).unlink()
        answer = await client.get("/v1/jobs")
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert b"the API is restarting" in answer.body
        assert await client.is_closed()
    assert machine.served == []


async def test_a_pipelined_request_for_jupyter_is_answered_in_order(machine: Machine) -> None:
    jobs, lab = (f"GET {path} HTTP/1.1\r\nHost: gpu.example\r\n{COOKIE}\r\n" for path in ("/v1/jobs", JUPYTER))
    async with machine.proxy(), machine.client() as client:
        await client.send(jobs + lab)
        assert [(await client.answer()).status, (await client.answer()).status] == [200, 503]
        assert await client.is_closed()


@pytest.mark.parametrize("size", [0, 2_000_000])
async def test_a_client_that_has_not_read_the_previous_response_gets_it_first(machine: Machine, size: int) -> None:
    """Then the connection cannot be passed on, and is relayed."""
    big = b"y" * 8_000_000

    async def respond(request: Request) -> JSONResponse:
        return JSONResponse(big.decode())

    app = Starlette(routes=[Route("/{path:path}", respond)])
    head = f"POST {JUPYTER} HTTP/1.1\r\nHost: gpu.example\r\nContent-Length: {size}\r\n{COOKIE}\r\n".encode()
    folder = machine.folder.parent / "other"
    folder.mkdir()
    async with (
        running_api(app, folder, machine.settings) as api,
        running_proxy(machine.jupyter, machine.sessions, folder, RequestGuardSettings()),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(api), limit=1024)
        client = Client(reader, writer)
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: gpu.example\r\n\r\n")
        await eventually_async(lambda: api.server_state.total_requests == 1)
        writer.write(head + b"x" * size)
        assert len((await client.answer()).body) == len(big) + 2
        assert (await client.answer()).body == f"jupyter got {size}".encode()
        assert len((await client.get("/v1/jobs")).body) == len(big) + 2
        writer.close()


async def test_empty_lines_and_half_a_line_do_not_keep_a_connection_open(machine: Machine) -> None:
    protocol = machine.api.config.http_protocol_class
    protocol.limits = replace(protocol.limits, header_timeout=timedelta(milliseconds=50))  # type: ignore[union-attr]
    for sent in ("", "\r\n\r\n", "GET /v1/jo"):
        async with machine.client() as client:
            if sent:
                assert (await client.get("/v1/jobs")).status == 200
                await client.send(sent)
            assert (await client.answer()).status == 408
            assert await client.is_closed()


async def test_a_line_without_end_is_too_large(machine: Machine) -> None:
    async with machine.proxy(), machine.client() as client:
        await client.send("GET /" + "x" * 100_000)
        assert (await client.answer()).status == 431


@pytest.fixture
async def tls(machine: Machine) -> AsyncIterator[Callable[[], contextlib.AbstractAsyncContextManager[Client]]]:
    settings = replace(machine.settings, listen=f"127.0.0.1:{free_port()}")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    ensure_certificate(settings, "127.0.0.1", datetime.now(UTC))

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Client]:
        port = int(settings.listen.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async with serve_tls_listener(machine.api.config, settings):
        yield connect


Connect = Callable[[], contextlib.AbstractAsyncContextManager[Client]]


async def test_a_connection_with_tls_alternates_too(machine: Machine, tls: Connect) -> None:
    """The API keeps the TLS; the client's address and scheme stay known."""
    head = f"POST {JUPYTER} HTTP/1.1\r\nHost: gpu.example\r\nContent-Length: 3000000\r\n{COOKIE}\r\n".encode()
    async with machine.proxy(), tls() as client:
        for _ in range(3):
            assert b'"client":"127.0.0.1","scheme":"https"' in (await client.get("/v1/jobs")).body
            assert (await client.get(JUPYTER)).body == b"jupyter got 0"
        await client.send(head + b"x" * 3_000_000)
        assert (await client.answer()).body == b"jupyter got 3000000"
    assert machine.served == ["/v1/jobs"] * 3


async def test_an_ssh_session_over_tls_is_relayed_with_its_clients_address(
    machine: Machine, tls: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers: list[str | None] = []
    identify = machine.sessions.identify_client
    monkeypatch.setattr(
        machine.sessions, "identify_client", lambda peer, request: (peers.append(peer), identify(peer, request))[1]
    )
    head = f"GET /v1/jobs/{JOB}/ssh HTTP/1.1\r\nHost: gpu.example\r\nAuthorization: Bearer {SECRET}\r\n{UPGRADE}\r\n"
    async with machine.proxy(), tls() as client:
        await client.send(head)
        assert (await client.answer()).status == 101
        payload = bytes(range(256)) * 200
        for _ in range(20):
            await client.send(b"\x82\xfe" + len(payload).to_bytes(2, "big") + b"\0\0\0\0" + payload)
        echoed = 0
        while echoed < 20 * len(payload):
            head_bytes = await client.reader.readexactly(2)
            size = head_bytes[1] & 127
            size = int.from_bytes(await client.reader.readexactly({126: 2, 127: 8}[size])) if size > 125 else size
            await client.reader.readexactly(size)
            echoed += size
        assert peers == ["127.0.0.1"]
    await eventually_async(lambda: len(machine.sessions) == 0)
