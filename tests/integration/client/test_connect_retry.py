"""`gpu-dev connect` to a dev server that became ready this moment: the way there may open a little later."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gpudev.cli import formatting
from gpudev.sdk.remote import ssh_route
from gpudev.wire.reservations import JobView
from support.client.fake_api import FakeApi


@pytest.fixture
def job(api: FakeApi) -> JobView:
    return api.add(status="active")


@pytest.fixture
def port() -> Iterator[int]:
    """One that nobody listens on until somebody does."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_only_one_that_is_fresh_and_elsewhere_is_waited_for(job: JobView) -> None:
    now = formatting.utc_now()
    elsewhere = replace(job, node_ip="10.1.2.3", launched_at=now)
    assert ssh_route.is_recently_launched(elsewhere, now + timedelta(seconds=1))
    assert not ssh_route.is_recently_launched(elsewhere, now + timedelta(minutes=1))
    assert not ssh_route.is_recently_launched(replace(elsewhere, node_ip="127.0.0.1"), now)
    assert not ssh_route.is_recently_launched(replace(elsewhere, launched_at=None), now)


def test_it_goes_on_as_soon_as_the_ssh_server_greets(job: JobView) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        opened: list[float] = []

        def open_late() -> None:
            time.sleep(0.3)  # the client's first attempts fail meanwhile
            opened.append(time.monotonic())
            listener.listen()
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-test\r\n")

        server = threading.Thread(target=open_late, daemon=True)
        server.start()
        ssh_route.wait_until_ssh_answers(
            replace(job, node_ip="127.0.0.1", node_port=listener.getsockname()[1]), patience=60
        )
        assert opened
        assert time.monotonic() - opened[0] < 20
        server.join(timeout=10)
        assert not server.is_alive()


def test_one_that_never_answers_is_left_to_ssh(job: JobView, port: int) -> None:
    began = time.monotonic()
    ssh_route.wait_until_ssh_answers(replace(job, node_ip="127.0.0.1", node_port=port), patience=0.3)
    assert 0.3 <= time.monotonic() - began < 20
