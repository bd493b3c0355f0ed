"""The SSH servers that a contract runs against."""

import subprocess

import pytest

from support.ssh.ssh_server import (
    SshServer,
    StartSsh,
)


class SshServers:
    @pytest.fixture
    def start_ssh(self) -> StartSsh:
        raise NotImplementedError("a server's tests say how it is started")

    @pytest.fixture
    def ssh(self, start_ssh: StartSsh) -> SshServer:
        return start_ssh()


def end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
