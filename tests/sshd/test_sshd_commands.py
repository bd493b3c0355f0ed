import pytest

from sshd.harness import Server

pytestmark = pytest.mark.slow


def test_x(server: Server) -> None:
    r = server.ssh("echo hi; echo err >&2; env; exit 7")
    print(r, server.milliseconds_to_banner)
    assert r.returncode == 7
