"""The stub on a socket: reads requests, checks who signed them and whether they may, answers or misbehaves."""

import asyncio
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from support.clouds.aws_stub.account import OWNER_ID, Account, Refused
from support.clouds.aws_stub.actions import answer
from support.clouds.aws_stub.faults import Effect, Refuse, throttled
from support.clouds.aws_stub.query import Pages, Request, parse_request
from support.clouds.aws_stub.rendering import error_answer
from support.clouds.aws_stub.signature import check_signature
from support.clouds.stub_faults import Cut, Delay, FaultyStub, Nonsense, Reset

ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "the-secret-that-never-leaves"


@dataclass(frozen=True, slots=True)
class _Message:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class AwsStub(FaultyStub[Effect, Request]):
    """Serves in the running event loop. `address` is where."""

    def __init__(self, account: Account | None = None, *, region: str = "us-east-2") -> None:
        super().__init__()
        self.account = account or Account()
        self.pages = Pages()
        self._throttle = 0
        self._region = region
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"http://{host}:{port}"

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    async def close(self) -> None:
        self.stop_listening()
        await asyncio.sleep(0)

    def environment(self) -> dict[str, str]:
        """What sends the AWS libraries here and nowhere else."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def throttle(self, requests: int) -> None:
        self._throttle = requests

    # --- one connection --------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while (message := await _read_message(reader)) is not None:
                if not await self._respond(message, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            self._open.discard(writer)
            writer.close()

    async def _respond(self, message: _Message, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        service = "ec2"
        effect: Effect | None = None
        try:
            service = check_signature(
                message.method, message.path, message.headers, message.body,
                access_key=ACCESS_KEY, secret=SECRET, region=self._region,
            )  # fmt: skip
            request = parse_request(service, message.body)
            self.called.append(request)
            effect = self.effect_on(request)
            if isinstance(effect, Refuse):
                raise effect.error()
            if effect == Reset(after_the_effect=False):
                return _break(writer)
            if isinstance(effect, Nonsense):
                return await _send(writer, 200, "", effect)
            self._authorise(request)
            status, text = 200, answer(self.account, self.pages, request)
        except Refused as refused:
            status, text = refused.status, error_answer(service, refused)
        return await _send(writer, status, text, effect)

    def effect_on(self, request: Request) -> Effect | None:
        if self._throttle > 0:
            self._throttle -= 1
            return throttled(request)
        return super().effect_on(request)

    def _authorise(self, request: Request) -> None:
        needed = {request.permission}
        if any(name.startswith("TagSpecification.") for name in request.parameters):
            needed.add("ec2:CreateTags")
        for permission in sorted(needed):
            if not self.may(permission):
                code = "AccessDenied" if request.service == "autoscaling" else "UnauthorizedOperation"
                raise Refused(
                    code,
                    f"User: arn:aws:iam::{OWNER_ID}:user/stub is not authorized to perform: {permission} because no "
                    f"identity-based policy allows the {permission} action",
                    403,
                )


async def _read_message(reader: asyncio.StreamReader) -> _Message | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    return _Message(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _send(writer: asyncio.StreamWriter, status: int, text: str, effect: Effect | None) -> bool:
    body = text.encode()
    match effect:
        case Reset():
            return _break(writer)
        case Nonsense(body=page):
            writer.write(_head(effect.status, len(page), effect.kind) + page)
        case Cut(declared=declared):
            writer.write(_head(status, len(body) if declared else None) + body[: len(body) * 2 // 3])
            await writer.drain()
            return False
        case Delay(seconds=seconds, drip=None):
            await asyncio.sleep(seconds)
            writer.write(_head(status, len(body)) + body)
        case Delay(seconds=seconds, drip=int(drip)):
            writer.write(_head(status, len(body)))
            for start in range(0, len(body), drip):
                writer.write(body[start : start + drip])
                await asyncio.sleep(seconds)
        case Refuse() | None:
            writer.write(_head(status, len(body)) + body)
    await writer.drain()
    return True


def _head(status: int, length: int | None, kind: str = "text/xml;charset=UTF-8") -> bytes:
    size = f"Content-Length: {length}\r\n" if length is not None else "Connection: close\r\n"
    return f"HTTP/1.1 {status} Stub\r\nContent-Type: {kind}\r\n{size}\r\n".encode()


def _break(writer: asyncio.StreamWriter) -> bool:
    """With a reset, as a machine that dies does it."""
    line = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
