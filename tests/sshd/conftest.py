import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sshd import harness
from sshd.harness import Server, StartServer


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    processes: list[subprocess.Popen[str]] = []
    servers: list[Server] = []

    def start(**changes: Any) -> Server:
        folder = Path(tempfile.mkdtemp(prefix="gd"))
        process, server = harness.start_server(tmp_path, folder, changes)
        processes.append(process)
        servers.append(server)
        return server

    yield start
    for process, server in zip(processes, servers, strict=True):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()
        shutil.rmtree(server.folder)
        assert not server.late_imports.exists(), f"imported too late: {server.late_imports.read_text()}"


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server()
