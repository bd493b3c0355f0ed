from pathlib import Path

import pytest

from support.fixtures.dev_server import build, builder, container, open_screen, program, server

__all__ = ["build", "builder", "container", "open_screen", "program", "server"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever comes first compiles the program, and may have to fetch a toolchain for it."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(900))
