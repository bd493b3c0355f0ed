"""A server that means ill, and a folder that others can write to: what a person's own program lets them do."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpudev.domain.access.invitations import parse_invitation_link
from gpudev.domain.errors import Invalid
from gpudev.sdk.user_files import write_object
from support.access.command_line import Cli

SECRET, PIN = "s" * 43, "p" * 43
ESCAPES = "\x1b]0;pwned\x07\x1b[2J\u202eada\nLogged in as root"


class _Hostile(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.dumps(
            {"api_key": "gpudev_" + "x" * 43, "expires_at": None, "username": ESCAPES, "role": "user"}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Hostile)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
async def test_what_a_server_calls_somebody_does_nothing_to_their_terminal(tmp_path: Path, hostile: str) -> None:
    told = await Cli(tmp_path, hostile).run("login", f"{hostile}/invitation#{SECRET}")
    assert "Logged in to" in told
    assert len(told.splitlines()) == 1
    assert told.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "link",
    [
        f"http://lab.example/invitation#{SECRET}",
        f"http://127.0.0.1.evil.example/invitation#{SECRET}",
        f"http://127.0.0.1@evil.example/invitation#{SECRET}",
        f"https://lab.example@evil.example/invitation#{SECRET}.{PIN}",
        f"https://lab.example\\@evil.example/invitation#{SECRET}",
        f"https:///invitation#{SECRET}",
        f"https://lab.example:99999/invitation#{SECRET}",
        f"https://[::1/invitation#{SECRET}",
        f"file:///etc/passwd/invitation#{SECRET}",
        f"https://lab.example/invitation?next=https://evil.example#{SECRET}",
        f"https://lab.example/invitation#{SECRET}.{PIN}.{PIN}",
        f"https://lab.example/invitation#{SECRET}.short",
        f"https://lab.example/invitation#{SECRET}.",
    ],
)
def test_a_link_that_only_looks_like_an_invitation_is_refused_and_not_repeated(link: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_invitation_link(link)
    assert SECRET not in str(refused.value)


def test_nothing_secret_is_written_into_what_somebody_laid_out(tmp_path: Path) -> None:
    credentials, theirs = tmp_path / "credentials", tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / f"credentials.{os.getpid()}.tmp").symlink_to(theirs)
    write_object(credentials, {"https://api": {"api_key": "gpudev_secret"}})
    assert theirs.read_text() == "theirs"
    assert credentials.stat().st_mode & 0o777 == 0o600
    assert not credentials.is_symlink()
