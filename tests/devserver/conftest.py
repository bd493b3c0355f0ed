from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devserver.harness import CONTAINER, IS_ROOT, ORDINARY, Builder, DevServer
from devserver.program import CannotCompile, compiled_program
from sshd.harness import Screen

OpenScreen = Callable[..., Screen]
Build = Callable[..., Builder]


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return compiled_program()
    except CannotCompile as error:
        pytest.skip(f"NOT TESTED: the dev server's program cannot be compiled: {error}")


@pytest.fixture
def build(program: Path) -> Iterator[Build]:
    """Makes dev servers' folders. Whatever was started in them is ended."""
    builders: list[Builder] = []
    servers: list[DevServer] = []

    def build_one(mode: str = CONTAINER, **more: Any) -> Builder:
        if mode == CONTAINER and not IS_ROOT:
            pytest.skip("NOT TESTED: only root can make a container (mount and process namespaces) for the dev server")
        builder = Builder(program, mode, **more)
        builders.append(builder)
        start = builder.start

        def start_and_remember(*options: str, **more: Any) -> DevServer:
            server = start(*options, **more)
            servers.append(server)
            return server

        builder.start = start_and_remember  # type: ignore[method-assign]
        return builder

    yield build_one
    for server in servers:
        server.stop()
    for builder in builders:
        builder.remove()


@pytest.fixture(params=[CONTAINER, ORDINARY])
def builder(request: pytest.FixtureRequest, build: Build) -> Builder:
    return build(request.param)


@pytest.fixture
def server(builder: Builder) -> DevServer:
    """As the first process of a container, and as somebody ordinary."""
    return builder.start()


@pytest.fixture
def container(build: Build) -> DevServer:
    return build(CONTAINER).start()


@pytest.fixture
def open_screen() -> Iterator[OpenScreen]:
    screens: list[Screen] = []

    def open_one(server: DevServer, *arguments: str, options: tuple[str, ...] = (), **size: int) -> Screen:
        screen = Screen(server.command(*arguments, options=options), **size)
        screens.append(screen)
        return screen

    yield open_one
    for screen in screens:
        screen.close()
