"""Jupyter over HTTP: forwards requests of browsers to Jupyter in dev servers.

Who gets in is the workflow's to say, what is passed on the door's. The way there is ssh, as for people.
"""

import asyncio
import html
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

import h11
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpudev.adapters.ssh_tunnels import SshReader, SshTunnels, SshWriter
from gpudev.domain.errors import GpuDevError, Invalid, Unavailable
from gpudev.http_edge.audit import ProxyClient
from gpudev.http_edge.error_responses import abort_response, to_error_response
from gpudev.proxy.jupyter import headers as door
from gpudev.proxy.jupyter.guard import JupyterGuard
from gpudev.proxy.jupyter.headers import Headers, JupyterPath
from gpudev.workflows.sessions.jupyter_access import AdmittedBrowser, BrowserSessions

log = structlog.get_logger(__name__)
_CHUNK_BYTES = 64 * 1024
_VALID_STATUSES = range(200, 600)
"""No web server knows others."""
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class JupyterConnection:
    reader: SshReader
    writer: SshWriter


class JupyterAccess:
    """Who is let through, by which way."""

    def __init__(
        self, jupyter_sessions: BrowserSessions, tunnels: SshTunnels, guard: JupyterGuard, own_names: Collection[str]
    ) -> None:
        """`own_names`: hosts by which pages of ours may be known, beside the one a request names."""
        self._jupyter_sessions = jupyter_sessions
        self._tunnels = tunnels
        self.guard = guard
        self._own_names = own_names

    async def redeem_link(self, place: JupyterPath, link: str, client: ProxyClient) -> str:
        with self.guard.limit_wrong_secrets(client, link):
            issued, guest = await self._jupyter_sessions.open_session(link, place.reservation_id)
        self.guard.record_opened(client, guest)
        return issued.secret

    async def admit(
        self, place: JupyterPath, method: str, headers: Headers, client: ProxyClient, *, is_websocket: bool = False
    ) -> AdmittedBrowser:
        given = door.list_session_secrets(headers)
        if not given:
            return await self._jupyter_sessions.admit_browser(None, place.reservation_id)
        door.check_origin(method, headers, self._own_names, is_websocket=is_websocket)
        with self.guard.limit_wrong_secrets(client, " ".join(given)):
            return await self._jupyter_sessions.admit_browser(door.find_session_secret(headers), place.reservation_id)

    @asynccontextmanager
    async def connect(self, session: AdmittedBrowser) -> AsyncIterator[JupyterConnection]:
        with self.guard.hold_connection(session):
            async with self._tunnels.open_tunnel(session.connection, session.secrets.private_key) as (reader, writer):
                yield JupyterConnection(reader, writer)


class JupyterHttpProxy:
    """What an HTTP request for Jupyter is answered; all others go to the app behind."""

    def __init__(self, app: ASGIApp, jupyter: JupyterAccess, session_seconds: int) -> None:
        self._app = app
        self._access = jupyter
        self._session_seconds = session_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = door.find_jupyter_path(scope["path"]) if scope["type"] == "http" else None
        if place is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        headers: Headers = scope["headers"]
        visitor = self._access.guard.identify_client(scope["client"][0] if scope["client"] else None, headers)
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            if request.method not in door.ALLOWED_METHODS:
                raise Invalid(f"{request.method[:20]} is nothing that can be asked of Jupyter")
            if place.subpath == door.ENTER_PATH:
                answer = await self._redeem_link(place, request, visitor)
                await answer(scope, receive, send)
                return
            guest = await self._access.admit(place, request.method, headers, visitor)
            await self._forward(guest, place, request, send_noting)
        except GpuDevError as error:
            event = "jupyter.cut_short" if has_begun else "jupyter.refused"
            log.info(event, code=error.code, error=error.message, request_id=visitor.request_id)
            if has_begun:
                if not await abort_response(scope, receive):
                    raise
                return
            self._access.guard.record_denied(visitor, error, request.method, place.reservation_id)
            await jupyter_error_response(error, visitor.request_id, wants_html(headers))(scope, receive, send)
        except ClientDisconnect:
            return

    async def _redeem_link(self, place: JupyterPath, request: Request, client: ProxyClient) -> Response:
        """A page that goes on to Jupyter by itself, and not a redirect: the cookie is sent by no other site's doing,
        and a redirect would be that of the site on which somebody followed the link."""
        links = parse_qs(request.url.query).get("ticket", [])
        if request.method != "GET" or len(links) != 1:
            raise Invalid("this opens with the link that `gpu-dev jupyter open` gives")
        secret = await self._access.redeem_link(place, links[0], client)
        cookie = door.session_cookie(secret, place, request.scope["headers"], self._session_seconds)
        page = (
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={place.path}lab">'
            f'<title>Jupyter</title><a href="{place.path}lab">Jupyter</a>'
        )
        return HTMLResponse(page, headers={**_PAGE_HEADERS, "Set-Cookie": cookie})

    async def _forward(self, session: AdmittedBrowser, place: JupyterPath, request: Request, send: Send) -> None:
        async with self._access.connect(session) as way:
            http = h11.Connection(h11.CLIENT)
            # At the same time: an answer may come before all of the request has gone, and say that it is refused.
            sending = asyncio.create_task(_send_request(http, way.writer, request, session))
            answering = asyncio.create_task(_send_response(http, way.reader, place, send))
            try:
                await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (answering, sending):
                    if task.done():
                        task.result()
            except h11.LocalProtocolError as error:
                raise Invalid(f"this cannot be asked of Jupyter: {error}") from error
            except h11.ProtocolError as error:
                raise Unavailable(f"what Jupyter says is no HTTP: {error}") from error
            finally:
                for task in (sending, answering):
                    task.cancel()
                await asyncio.gather(sending, answering, return_exceptions=True)


async def _send_request(http: h11.Connection, writer: SshWriter, request: Request, session: AdmittedBrowser) -> None:
    scope = request.scope
    headers = door.request_headers(scope["headers"], session.secrets.token)
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
    """Whoever asked may not wait for the answer. (The web server says the same once the answer is complete.)"""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


async def _send_response(http: h11.Connection, reader: SshReader, place: JupyterPath, send: Send) -> None:
    has_begun = False
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await _read_chunk(reader, has_begun))
        elif isinstance(event, h11.Response):
            if event.status_code not in _VALID_STATUSES:
                raise Unavailable(f"Jupyter answers with {event.status_code}, which means nothing")
            headers = door.response_headers([(bytes(name), bytes(value)) for name, value in event.headers], place.path)
            await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
            has_begun = True
        elif isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        elif isinstance(event, h11.EndOfMessage):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        elif isinstance(event, h11.ConnectionClosed):
            raise Unavailable("Jupyter hung up")


async def _read_chunk(reader: SshReader, has_begun: bool) -> bytes:
    data = await reader.read(_CHUNK_BYTES)
    if not data and not has_begun:
        raise Unavailable("Jupyter hung up before it answered")
    return data


def wants_html(headers: Headers) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def jupyter_error_response(error: GpuDevError, request_id: str, as_page: bool) -> Response:
    """For people who sit in front of a browser, or as the API says no."""
    refusal = to_error_response(error)
    headers = {**_PAGE_HEADERS, **refusal.headers, "X-Request-ID": request_id}
    if as_page:
        phrase = HTTPStatus(refusal.status).phrase
        page = (
            f'<!doctype html><meta charset="utf-8"><title>{phrase}</title>'
            f'<body style="font-family: sans-serif; margin: 4em"><h1>{phrase}</h1><p>{html.escape(refusal.detail)}</p>'
        )
        return HTMLResponse(page, refusal.status, headers)
    return Response(refusal.problem_body(request_id), refusal.status, headers, "application/problem+json")
