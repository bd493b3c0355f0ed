from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.fake_api import FakeApi
from cli.harness import Cli

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9zYkq7cbRyXc1fC2Fz0pWmYk3n0k1n5vYt3m1kQX9a ada@laptop"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A person with one ssh key."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id_ed25519.pub").write_text(PUBLIC_KEY + "\n")
    return folder


@pytest.fixture
def cli(home: Path, api: FakeApi) -> Cli:
    """The program, told where the API is and who asks."""
    return Cli(home, api)


@pytest.fixture
def lonely_cli(home: Path) -> Cli:
    """The program on a machine where nothing is set."""
    return Cli(home)
