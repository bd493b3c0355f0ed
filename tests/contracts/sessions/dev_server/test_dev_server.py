"""The program inside pods keeps what every dev server promises: as the first process of a container, and as somebody
ordinary."""

import pytest

from contracts.ssh import SshContract
from support.ssh.dev_server_container import Builder, DevServer
from support.ssh.ssh_server import MEBIBYTE, SshServer, StartSsh

pytestmark = pytest.mark.slow


class TestDevServer(SshContract):
    memory_limits = (16 * MEBIBYTE, 48 * MEBIBYTE)

    @pytest.fixture
    def start_ssh(self, builder: Builder) -> StartSsh:
        def start(
            *, login_seconds: float = 120.0, keepalive_seconds: float = 30.0, greeting: str | None = None
        ) -> SshServer:
            if greeting:
                builder.write("greeting", greeting)
            return builder.start("--login-time", f"{login_seconds}s", "--keepalive", f"{keepalive_seconds}s")

        return start

    @pytest.fixture
    def own_ssh(self, container: DevServer) -> SshServer:
        return container
