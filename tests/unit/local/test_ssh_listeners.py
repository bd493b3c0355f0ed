"""Listening sockets for SSH servers, opened ahead of need."""

import contextlib
import errno
import socket

import pytest

from gpudev.adapters.local.servers.ssh_listeners import SshListeners
from gpudev.domain.errors import ClusterError, Unavailable


def test_an_earlier_port_is_used_again_unless_it_is_taken() -> None:
    with contextlib.closing(SshListeners("127.0.0.1", 1)) as listeners:
        with listeners.take(None) as first:
            port = first.getsockname()[1]
            with listeners.take(port) as other:
                assert other.getsockname()[1] != port
        with listeners.take(port) as again:
            assert again.getsockname()[1] == port


def test_what_was_opened_ahead_is_used_when_no_port_is_free_and_then_a_launch_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_port(_self: SshListeners, _port: int) -> socket.socket:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    with contextlib.closing(SshListeners("127.0.0.1", 2)) as listeners, contextlib.ExitStack() as stack:
        listeners.fill()
        monkeypatch.setattr(SshListeners, "_listen", no_port)
        for _ in range(2):
            stack.enter_context(listeners.take(40_000))
        with pytest.raises(Unavailable, match=r"no port is free for ssh on 127\.0\.0\.1"):
            listeners.take(None)


def test_an_address_that_is_not_of_this_machine_is_an_error_and_no_delay() -> None:
    with (
        contextlib.closing(SshListeners("203.0.113.1", 1)) as listeners,
        pytest.raises(ClusterError, match="cannot listen for ssh on"),
    ):
        listeners.take(None)


def test_one_that_is_taken_is_replaced_and_none_is_left_after_closing() -> None:
    listeners = SshListeners("127.0.0.1", 2)
    listeners.fill()
    ports = {listener.getsockname()[1] for listener in listeners._ready}
    with listeners.take(None) as taken:
        assert taken.getsockname()[1] in ports
        assert len(listeners._ready) == 2
    listeners.close()
    listeners.fill()
    assert listeners._ready == []
