"""The API as it is really run: a process of its own, under its own database role."""

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpudev.adapters.postgres.database.roles import API
from gpudev.adapters.postgres.stores import open_stores
from gpudev.api.http.connection_limits import CONNECTION_LIMITS
from gpudev.domain.access.users import Role
from gpudev.ports.access import AuditEntry, AuditQuery
from gpudev.settings import Settings
from support.polling import eventually
from support.ports import free_port


async def make_key(settings: Settings) -> str:
    stores = open_stores(settings)
    user = await stores.users.add_user("ada", Role.USER)
    issued = await stores.users.issue_key(user.user_id, None, "test")
    await stores.close()
    return issued.secret


async def audit(settings: Settings) -> list[AuditEntry]:
    stores = open_stores(settings)
    found = await stores.audit_log.find_entries(AuditQuery())
    await stores.close()
    return found


@pytest.fixture
def process(settings: Settings) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    port = free_port()
    environment = {
        **os.environ,
        "POSTGRES_HOST": settings.database.host,
        "POSTGRES_PORT": str(settings.database.port),
        "POSTGRES_USER": API,
        "POSTGRES_DB": settings.database.database,
        "GPU_DEV_HOME": str(settings.state_dir),
        "GPU_DEV_API_PORT": str(port),
    }
    process = subprocess.Popen([sys.executable, "-m", "gpudev.main", "api"], env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: is_live(port), "the API did not start")
        yield process, port
    finally:
        process.terminate()
        process.wait(30)


def is_live(port: int) -> bool:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", "/health/live")
            return connection.getresponse().status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_slow_clients_are_shut_out_and_what_was_done_is_written_before_a_stop(
    settings: Settings, process: tuple["subprocess.Popen[bytes]", int]
) -> None:
    running, port = process
    secret = asyncio.run(make_key(settings))
    address, patience = ("127.0.0.1", port), 60 + CONNECTION_LIMITS.body_timeout.total_seconds()
    with socket.create_connection(address, patience) as slow, socket.create_connection(address, patience) as slower:
        slow.sendall(b"POST /v1/jobs/submit HTTP/1.1\r\nHost: api\r\nX-Slow: ")
        head = f"POST /v1/jobs/submit HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {secret}\r\n"
        slower.sendall(head.encode() + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        assert slower.recv(100).startswith(b"HTTP/1.1 408 ")
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/v1/keys/rotate", headers={"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("server")) == (200, None)
        answer.read()
    running.send_signal(signal.SIGTERM)  # at once, before anything is written by itself
    running.wait(30)
    entries = asyncio.run(audit(settings))
    assert [(entry.action, entry.outcome, entry.username) for entry in entries] == [
        ("POST /v1/jobs/submit", "disconnected", "ada"),
        ("POST /v1/keys/rotate", "ok", "ada"),
    ]
