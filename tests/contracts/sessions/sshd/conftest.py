import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ssh.sshd_process import SshdServer, StartServer, WarmProcess


@pytest.fixture(scope="session")
def warm_process() -> Iterator[WarmProcess]:
    process = WarmProcess()
    yield process
    process.close()


@pytest.fixture
def start_server(warm_process: WarmProcess, tmp_path: Path) -> Iterator[StartServer]:
    servers: list[SshdServer] = []
    home = tmp_path / "home"
    home.mkdir()

    def start(**changes: Any) -> SshdServer:
        folder = Path(tempfile.mkdtemp(prefix="gd"))
        server = warm_process.start_server(home, folder, changes)
        servers.append(server)
        return server

    yield start
    for server in servers:
        warm_process.stop_server(server)
        late_imports = server.late_imports.read_text() if server.late_imports.exists() else ""
        shutil.rmtree(server.folder)
        assert late_imports == "", f"imported too late: {late_imports}"


@pytest.fixture
def server(start_server: StartServer) -> SshdServer:
    return start_server()
