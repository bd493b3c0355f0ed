"""Jupyter over HTTP: forwards requests of browsers to Jupyter in dev servers, over ssh.

The workflow decides who is admitted, `headers` what is forwarded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs

import h11
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpudev.adapters.ssh_tunnels import SshReader, SshTunnels, SshWriter
from gpudev.domain.errors import GpuDevError, Invalid, Unavailable
from gpudev.http_edge.audit import ProxyClient
from gpudev.http_edge.error_responses import abort_response, to_error_response
from gpudev.http_edge.html_pages import PAGE_HEADERS, html_page, paragraph, wants_html
from gpudev.proxy.jupyter import headers as header_rules
from gpudev.proxy.jupyter.guard import JupyterGuard, TooManyTinyPieces
from gpudev.proxy.jupyter.headers import Headers, JupyterPath
from gpudev.proxy.loop_share import TINY_BYTES, LoopShare, WorkSlice
from gpudev.workflows.sessions.jupyter_access import AdmittedBrowser, BrowserSessions

log = structlog.get_logger(__name__)
_CHUNK_BYTES = 64 * 1024
_MAX_INTERIM_RESPONSES = 8
"""Before the response itself (100 Continue, 103 Early Hints). They are not forwarded."""
_VALID_STATUSES = range(200, 600)
"""The statuses that the web server can send."""
_RELOAD_SECONDS = "3"


@dataclass(frozen=True, slots=True)
class JupyterConnection:
    reader: SshReader
    writer: SshWriter
    check_tiny_pieces: Callable[[int], None]
    """Counts this many more tiny frames or chunks. Raises TooManyTinyPieces."""
    share: LoopShare


class JupyterAccess:
    """Admission of browsers, and connections to Jupyter."""

    def __init__(
        self, jupyter_sessions: BrowserSessions, tunnels: SshTunnels, guard: JupyterGuard, own_names: Collection[str]
    ) -> None:
        """`own_names`: public host names of this server, besides the request's own Host."""
        self._jupyter_sessions = jupyter_sessions
        self._tunnels = tunnels
        self.guard = guard
        self.share = LoopShare()
        self._own_names = own_names

    async def redeem_link(self, target: JupyterPath, link: str, client: ProxyClient) -> str:
        with self.guard.limit_wrong_secrets(client, link):
            issued, session = await self._jupyter_sessions.open_session(link, target.reservation_id)
        self.guard.record_opened(client, session)
        return issued.secret

    async def admit(
        self, target: JupyterPath, method: str, headers: Headers, client: ProxyClient, *, is_websocket: bool = False
    ) -> AdmittedBrowser:
        secrets = header_rules.list_session_secrets(headers)
        if not secrets:
            return await self._jupyter_sessions.admit_browser(None, target.reservation_id)
        header_rules.check_origin(method, headers, self._own_names, is_websocket=is_websocket)
        with self.guard.limit_wrong_secrets(client, " ".join(secrets)):
            return await self._jupyter_sessions.admit_browser(
                header_rules.find_session_secret(headers), target.reservation_id
            )

    @asynccontextmanager
    async def connect(self, session: AdmittedBrowser) -> AsyncIterator[JupyterConnection]:
        with self.guard.hold_connection(session):
            async with self._tunnels.open_tunnel(session.connection, session.secrets.private_key) as (reader, writer):
                yield JupyterConnection(reader, writer, partial(self.guard.check_tiny_pieces, session), self.share)


class JupyterHttpProxy:
    """ASGI middleware: handles requests for Jupyter; all others go to `app`."""

    def __init__(self, app: ASGIApp, jupyter: JupyterAccess, session_seconds: int) -> None:
        self._app = app
        self._access = jupyter
        self._session_seconds = session_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = header_rules.find_jupyter_path(scope["path"]) if scope["type"] == "http" else None
        if target is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        headers: Headers = scope["headers"]
        client = self._access.guard.identify_client(scope["client"][0] if scope["client"] else None, headers)
        has_begun = False

        async def send_and_mark(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            if request.method not in header_rules.ALLOWED_METHODS:
                raise Invalid(f"method {request.method[:20]} is not supported for Jupyter")
            if target.subpath == header_rules.ENTER_PATH:
                response = await self._redeem_link(target, request, client)
                await response(scope, receive, send)
                return
            session = await self._access.admit(target, request.method, headers, client)
            try:
                await self._forward(session, target, request, send_and_mark)
            except TooManyTinyPieces:
                self._access.guard.record_cut(client, session)
                raise
        except GpuDevError as error:
            event = "jupyter.aborted" if has_begun else "jupyter.denied"
            log.info(event, code=error.code, error=error.message, request_id=client.request_id)
            if has_begun:
                if not await abort_response(scope, receive):
                    raise
                return
            self._access.guard.record_denied(client, error, request.method, target.reservation_id)
            await jupyter_error_response(error, client.request_id, wants_html(headers))(scope, receive, send)
        except ClientDisconnect:
            return

    async def _redeem_link(self, target: JupyterPath, request: Request, client: ProxyClient) -> Response:
        """Returns a page that opens Jupyter, not a redirect: the cookie is SameSite=Strict, and a redirect would count
        as a request of the site that contained the link."""
        links = parse_qs(request.url.query).get("ticket", [])
        if request.method != "GET" or len(links) != 1:
            raise Invalid("open this page with the link from `gpu-dev jupyter open`")
        secret = await self._access.redeem_link(target, links[0], client)
        cookie = header_rules.session_cookie(secret, target, request.scope["headers"], self._session_seconds)
        address = f"{target.path}lab"
        page = html_page("Jupyter", f'<p><a href="{address}">Open Jupyter</a></p>', refresh=f"0; url={address}")
        page.headers["Set-Cookie"] = cookie
        return page

    async def _forward(self, session: AdmittedBrowser, target: JupyterPath, request: Request, send: Send) -> None:
        async with self._access.connect(session) as connection:
            http = h11.Connection(h11.CLIENT)
            # Concurrently: Jupyter may respond, for instance with an error, before the whole request is sent.
            sending = asyncio.create_task(_send_request(http, connection.writer, request, session))
            responding = asyncio.create_task(_ResponseForwarder(http, connection, target, send).run())
            try:
                await asyncio.wait({sending, responding}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (responding, sending):
                    if task.done():
                        task.result()
            except h11.LocalProtocolError as error:
                raise Invalid(f"this request cannot be forwarded to Jupyter: {error}") from error
            except h11.ProtocolError as error:
                raise Unavailable(f"Jupyter's response is not valid HTTP: {error}") from error
            finally:
                for task in (sending, responding):
                    task.cancel()
                await asyncio.gather(sending, responding, return_exceptions=True)


async def _send_request(http: h11.Connection, writer: SshWriter, request: Request, session: AdmittedBrowser) -> None:
    scope = request.scope
    headers = header_rules.request_headers(scope["headers"], session.secrets.token)
    has_length = any(name == b"content-length" for name, _ in headers)
    is_chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    if is_chunked and not has_length:
        headers.append((b"transfer-encoding", b"chunked"))
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers.append((b"connection", b"close"))
    writer.write(http.send(h11.Request(method=request.method, target=target, headers=headers)) or b"")
    async for piece in request.stream():
        if piece:
            writer.write(http.send(h11.Data(data=piece)) or b"")
            await writer.drain()
    writer.write(http.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    await _wait_for_disconnect(request)


async def _wait_for_disconnect(request: Request) -> None:
    """Raises ClientDisconnect when the client disconnects. The web server reports the same once the response is
    complete."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


class _ResponseForwarder:
    """Jupyter's response on its way to the browser. Jupyter chooses its chunks, so they are sent on together, and the
    event loop is given away after each slice of work."""

    def __init__(self, http: h11.Connection, connection: JupyterConnection, target: JupyterPath, send: Send) -> None:
        self._http = http
        self._connection = connection
        self._target = target
        self._send = send
        self._has_begun = False
        self._interim_responses = 0
        self._chunks: list[bytes] = []
        self._chunk_bytes = 0
        self._tiny_chunks = 0

    async def run(self) -> None:
        work = WorkSlice()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._flush()
                self._http.receive_data(await work.exclude(self._read()))
            elif isinstance(event, h11.InformationalResponse):
                self._count_interim_response()
            elif isinstance(event, h11.Response):
                await self._begin(event)
            elif isinstance(event, h11.Data):
                await self._add_chunk(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._flush()
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise Unavailable("Jupyter closed the connection")
            await self._connection.share.yield_loop(work, is_wasteful=self._tiny_chunks > 0)

    async def _begin(self, response: h11.Response) -> None:
        if response.status_code not in _VALID_STATUSES:
            raise Unavailable(f"Jupyter responded with the invalid status {response.status_code}")
        headers = header_rules.response_headers(
            [(bytes(name), bytes(value)) for name, value in response.headers], self._target.path
        )
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        self._has_begun = True

    def _count_interim_response(self) -> None:
        self._interim_responses += 1
        if self._interim_responses > _MAX_INTERIM_RESPONSES:
            raise Unavailable("Jupyter sent too many interim responses")

    async def _add_chunk(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._chunk_bytes += len(chunk)
        self._tiny_chunks += len(chunk) < TINY_BYTES
        if self._chunk_bytes >= _CHUNK_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        """Everything that is here; nothing is held back for more."""
        if self._tiny_chunks:
            self._connection.check_tiny_pieces(self._tiny_chunks)
        if self._chunks:
            body = b"".join(self._chunks)
            self._chunks, self._chunk_bytes, self._tiny_chunks = [], 0, 0
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _read(self) -> bytes:
        data = await self._connection.reader.read(_CHUNK_BYTES)
        if not data and not self._has_begun:
            raise Unavailable("Jupyter closed the connection without a response")
        return data


def jupyter_error_response(error: GpuDevError, request_id: str, as_page: bool) -> Response:
    """An HTML page for browsers, otherwise a problem document as the API returns.

    The page of a Jupyter that does not answer, because it still starts, loads itself again until it answers.
    """
    response = to_error_response(error)
    headers = {**response.headers, "X-Request-ID": request_id}
    if not as_page:
        body = response.problem_body(request_id)
        return Response(body, response.status, {**PAGE_HEADERS, **headers}, "application/problem+json")
    body_html, refresh = paragraph(response.detail), None
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        body_html += paragraph("If it is still starting, wait: this page tries again by itself.")
        refresh = _RELOAD_SECONDS
    page = html_page(HTTPStatus(response.status).phrase, body_html, response.status, refresh=refresh)
    page.headers.update(headers)
    return page
