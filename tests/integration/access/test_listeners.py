"""The second door: TLS and nothing else, a certificate that may change, and a client that knows the key."""

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from gpudev.adapters.tls import CertificateFiles, ensure_self_signed
from gpudev.bootstrap.listeners import serve_tls_listener
from gpudev.domain.addresses import ListenAddress
from gpudev.domain.errors import Invalid, Unavailable
from gpudev.sdk.errors import Unreachable
from gpudev.sdk.http.certificate_pins import find_pin, store_pin
from gpudev.sdk.http.transport import HttpRequest, HttpTransport
from gpudev.settings import Settings
from support.clock import ManualClock
from support.polling import eventually_async
from support.ports import NEEDS_OTHER_ADDRESS, OTHER_ADDRESS, free_port

pytestmark = NEEDS_OTHER_ADDRESS
"""To the system an address like any other: what listens here is not heard on 127.0.0.1."""
HEALTH = HttpRequest("GET", "/health")


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    said = f"{scope['scheme']} {scope['client'][0]}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


@dataclass
class Door:
    address: ListenAddress
    files: CertificateFiles

    @property
    def fingerprint(self) -> str:
        return self.files.fingerprint()

    def ask(self, pin: str | None) -> bytes:
        return HttpTransport(self.address.url, pin=pin).send(HEALTH).body


@contextlib.asynccontextmanager
async def open_door(settings: Settings, clock: ManualClock, *, every: float = 60.0) -> AsyncIterator[Door]:
    config = uvicorn.Config(echo, lifespan="off", log_config=None, timeout_graceful_shutdown=1)  # type: ignore[arg-type]
    async with serve_tls_listener(config, settings, clock, every) as address:
        assert address is not None
        folder = settings.state_dir / "tls"
        files = CertificateFiles(
            settings.tls_cert or folder / "certificate.pem", settings.tls_key or folder / "key.pem"
        )
        yield Door(address, files)


@pytest.fixture
def listening(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", listen=f"{OTHER_ADDRESS}:{free_port(OTHER_ADDRESS)}")


async def test_behind_the_door_is_the_same_app_with_tls(listening: Settings, clock: ManualClock) -> None:
    async with open_door(listening, clock) as door:
        assert await asyncio.to_thread(door.ask, door.fingerprint) == b"https 127.0.0.1"
    with pytest.raises(Unreachable, match="refused"):
        door.ask(door.fingerprint)


async def test_nothing_is_said_to_a_server_with_another_key(
    listening: Settings, clock: ManualClock, tmp_path: Path
) -> None:
    other = ensure_self_signed(tmp_path / "other", OTHER_ADDRESS, clock.now()).fingerprint()
    async with open_door(listening, clock) as door:
        with pytest.raises(Unreachable, match="does not present the key") as refusal:
            await asyncio.to_thread(door.ask, other)
        assert not refusal.value.sent
        assert refusal.value.final


async def test_without_a_pin_a_self_made_certificate_is_not_trusted(listening: Settings, clock: ManualClock) -> None:
    async with open_door(listening, clock) as door:
        with pytest.raises(Unreachable, match="is not trusted"):
            await asyncio.to_thread(door.ask, None)


async def test_plain_http_gets_no_answer_there(listening: Settings, clock: ManualClock) -> None:
    def ask_plainly(address: ListenAddress) -> bytes:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""
        finally:
            connection.close()

    async with open_door(listening, clock) as door:
        assert await asyncio.to_thread(ask_plainly, door.address) == b""


async def test_old_versions_of_tls_are_not_spoken(listening: Settings, clock: ManualClock) -> None:
    def shake(address: ListenAddress) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection((address.host, address.port), timeout=10) as line,
            context.wrap_socket(line) as end,
        ):
            return end.version()

    async with open_door(listening, clock) as door:
        assert await asyncio.to_thread(shake, door.address) in ("TLSv1.2", "TLSv1.3")


async def test_a_renewed_certificate_is_shown_without_a_restart_and_known_by_the_old_fingerprint(
    listening: Settings, clock: ManualClock
) -> None:
    def shown(address: ListenAddress) -> str:
        return ssl.get_server_certificate((address.host, address.port), timeout=10)

    async with open_door(listening, clock, every=0.02) as door:
        pin, before = door.fingerprint, await asyncio.to_thread(shown, door.address)
        clock.move(days=330)
        await eventually_async(lambda: door.files.certificate.read_text().strip() != before.strip())

        async def is_another_shown() -> bool:
            return await asyncio.to_thread(shown, door.address) != before

        await eventually_async(is_another_shown)
        assert await asyncio.to_thread(door.ask, pin)


async def test_a_given_certificate_that_breaks_leaves_the_old_one_in_place(
    listening: Settings, clock: ManualClock, tmp_path: Path
) -> None:
    given = ensure_self_signed(tmp_path / "given", OTHER_ADDRESS, clock.now())
    settings = replace(listening, tls_cert=given.certificate, tls_key=given.key)
    async with open_door(settings, clock, every=0.02) as door:
        pin = door.fingerprint
        given.certificate.write_text("half of")
        await asyncio.sleep(0.1)  # it is read again every 0.02 seconds
        assert await asyncio.to_thread(door.ask, pin)
    assert not (settings.state_dir / "tls").exists()


async def test_what_cannot_be_opened_says_why(listening: Settings, clock: ManualClock, tmp_path: Path) -> None:
    config = uvicorn.Config(echo, lifespan="off", log_config=None)  # type: ignore[arg-type]
    with socket.socket() as taken:
        taken.bind((OTHER_ADDRESS, 0))
        taken.listen()
        busy = replace(listening, listen=f"{OTHER_ADDRESS}:{taken.getsockname()[1]}")
        for settings, why in (
            (busy, "cannot listen"),
            (replace(listening, listen="203.0.113.7"), "cannot listen"),
            (replace(listening, listen="0.0.0.0"), "wildcard address"),
            (replace(listening, tls_cert=tmp_path / "none"), "or neither"),
            (replace(listening, tls_cert=tmp_path / "none", tls_key=tmp_path / "none"), "none"),
        ):
            with pytest.raises((Invalid, Unavailable), match=why):
                async with serve_tls_listener(config, settings, clock):
                    raise AssertionError("it must not open")


async def test_without_the_setting_there_is_no_second_door(tmp_path: Path, clock: ManualClock) -> None:
    config = uvicorn.Config(echo, lifespan="off", log_config=None)  # type: ignore[arg-type]
    async with serve_tls_listener(config, Settings(state_dir=tmp_path / "state"), clock) as address:
        assert address is None
    assert not (tmp_path / "state").exists()


def test_pins_are_kept_per_address_in_an_owner_only_file(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert find_pin(env, "https://a") is None
    store_pin(env, "https://a", "one")
    store_pin(env, "https://b", "two")
    store_pin(env, "https://b", None)
    assert (find_pin(env, "https://a"), find_pin(env, "https://b")) == ("one", None)
    assert (tmp_path / ".gpu-dev" / "trusted-servers.json").stat().st_mode & 0o777 == 0o600
