"""A processor over a real database that tells people outside: a real HTTP server and a real mail server hear it."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from gpudev.adapters.postgres.database.roles import PROCESSOR
from gpudev.adapters.postgres.stores import Stores
from gpudev.bootstrap.processor import make_processor
from gpudev.domain.cluster import Node
from gpudev.settings import Settings
from support.clock import ManualClock
from support.paper_cluster import PaperCluster
from support.world import World


@dataclass
class Webhook:
    """What was posted, and what it answers."""

    url: str = ""
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    status: int = 200
    location: str = ""
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def titles(self) -> list[str]:
        return [body["title"].partition(" ")[2].partition(" ")[2] for _, body in self.posts]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    heard = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.posts.append((self.path, json.loads(body)))
            heard.may_answer.wait(150)
            self.send_response(heard.status)
            if heard.location:
                self.send_header("Location", heard.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        heard.url = f"json://hook:planted-4711@127.0.0.1:{server.server_port}/hooks/planted-token"
        yield heard
        heard.may_answer.set()
        server.shutdown()
        thread.join()


@dataclass
class Mailbox:
    port: int = 0
    letters: list[tuple[list[str], Message]] = field(default_factory=list)
    refuses: bool = False

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.refuses:
            return "451 try again later"
        assert isinstance(envelope.content, bytes)
        self.letters.append((list(envelope.rcpt_tos), message_from_bytes(envelope.content)))
        return "250 OK"


class _Controller(Controller):
    def _trigger_server(self) -> None:
        """It knocks at the port it was given; this is the one it got."""
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        super()._trigger_server()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    heard = Mailbox()
    controller = _Controller(
        heard,
        hostname="127.0.0.1",
        port=0,
        auth_require_tls=False,
        authenticator=lambda *_: AuthResult(success=True),
    )
    controller.start()
    heard.port = controller.port
    yield heard
    controller.stop()


@pytest.fixture
async def world(
    stores: Stores, stores_of: Callable[[str], Stores], clock: ManualClock, settings: Settings
) -> AsyncIterator[World]:
    cluster = PaperCluster([Node("node-1", "h100", 8)], clock)
    theirs = stores_of(PROCESSOR)
    processor = make_processor(theirs, cluster, clock, settings.timing)
    processor._queue_planner._publisher._seconds = lambda: (
        0.0
    )  # publishing is never too dear, however slow the machine is
    yield World(
        replace(stores, leases=theirs.leases, notifications=theirs.notifications), cluster, clock, processor, settings
    )
    await processor.effects.cancel()
