"""The stub on a socket: reads requests, checks who signed them, answers or misbehaves."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from support.access.sts_stub.identities import Identity
from support.access.sts_stub.signature import Message, NotSigned, verify

NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass(frozen=True, slots=True)
class Raw:
    """Something else answers."""

    body: bytes
    status: int = 200
    content_type: str = "text/xml"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Drip:
    """The right answer, a byte at a time."""

    pause: float = 0.05


@dataclass(frozen=True, slots=True)
class Hang:
    """Nobody answers."""


@dataclass
class StsStub:
    """Serves in the running event loop."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    identities: dict[str, Identity] = field(default_factory=dict)
    misbehaviour: Raw | Drip | Hang | None = None
    requests: list[Message] = field(default_factory=list)
    address: str = ""
    _server: asyncio.Server | None = None
    _open: set["asyncio.Task[None]"] = field(default_factory=set)

    def know(self, *identities: Identity) -> None:
        self.identities |= {identity.access_key: identity for identity in identities}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://{host}:{port}/"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                message = await read_message(reader)
                self.requests.append(message)
                await self._answer(message, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        match self.misbehaviour:
            case Raw() as raw:
                await send(writer, raw)
            case Hang():
                await asyncio.Event().wait()
            case Drip(pause=pause):
                await send(writer, self.answer_to(message), pause)
            case None:
                await send(writer, self.answer_to(message))

    def answer_to(self, message: Message) -> Raw:
        try:
            identity = verify(message, self.identities, self.now())
        except NotSigned as refusal:
            return error(refusal.code, str(refusal))
        query = message.url.partition("?")[2]
        asked = parse_qsl(message.body.decode() if message.method == "POST" else query)
        match dict(asked).get("Action"):
            case "GetCallerIdentity":
                return Raw(caller_identity(identity).encode())
            case "GetAccessKeyInfo":
                body = f"<Account>{identity.account}</Account>"
                return Raw(_response("GetAccessKeyInfo", body).encode())
            case other:
                return error("InvalidAction", f"Could not find operation {other} for version 2011-06-15", 400)


def caller_identity(identity: Identity) -> str:
    fields = {"Arn": identity.arn, "UserId": identity.user_id, "Account": identity.account}
    return _response("GetCallerIdentity", "".join(f"<{n}>{escape(value)}</{n}>" for n, value in fields.items()))


def error(code: str, message: str, status: int = 403) -> Raw:
    text = (
        f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>Sender</Type><Code>{code}</Code>'
        f"<Message>{escape(message)}</Message></Error><RequestId>c6104cbe</RequestId></ErrorResponse>"
    )
    return Raw(text.encode(), status)


def _response(action: str, result: str) -> str:
    return (
        f'<{action}Response xmlns="{NAMESPACE}"><{action}Result>{result}</{action}Result>'
        f"<ResponseMetadata><RequestId>c6104cbe</RequestId></ResponseMetadata></{action}Response>"
    )


async def read_message(reader: asyncio.StreamReader) -> Message:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Message(method, target, headers, await reader.readexactly(length))


async def send(writer: asyncio.StreamWriter, raw: Raw, pause: float | None = None) -> None:
    lines = [f"HTTP/1.1 {raw.status} Stub", f"Content-Type: {raw.content_type}", f"Content-Length: {len(raw.body)}"]
    lines += [*(f"{name}: {value}" for name, value in raw.headers), "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode())
    if pause is None:
        writer.write(raw.body)
    else:
        for byte in raw.body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause)
    await writer.drain()
