import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devserver.harness import CONTAINER, ORDINARY, Builder, DevServer, can_contain
from devserver.program import CannotCompile, compiled_program
from sshd.harness import Screen

HERE = Path(__file__).parent


class WatchedScreen(Screen):
    def wait_until(self, claim: Callable[[], bool]) -> None:
        self._read_until(claim, 30.0, "it was never so")

    def wait_for_prompt_after(self, line: str) -> None:
        """Only then the shell reads keys itself: before, they are the kernel's, where some mean something else."""
        self.wait_until(lambda: f"\n{line}\n" in f"\n{self.text}" and self.text.endswith("$"))


OpenScreen = Callable[..., WatchedScreen]
Build = Callable[..., Builder]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever comes first compiles the program, and may have to fetch a toolchain for it."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def program() -> Path:
    if sys.platform != "linux":
        pytest.skip("NOT TESTED: dev servers in containers run on Linux only")
    try:
        return compiled_program()
    except CannotCompile as error:
        pytest.skip(f"NOT TESTED: the dev server's program cannot be compiled: {error}")


@pytest.fixture
def build(program: Path) -> Iterator[Build]:
    """Makes dev servers' folders. Whatever was started in them is ended."""
    builders: list[Builder] = []

    def build_one(mode: str = CONTAINER, **more: Any) -> Builder:
        if mode == CONTAINER and not can_contain():
            pytest.skip(
                "NOT TESTED: only root, with mount and process namespaces, can make a container for a dev server"
            )
        builders.append(Builder(program, mode, **more))
        return builders[-1]

    yield build_one
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
    screens: list[WatchedScreen] = []

    def open_one(server: DevServer, *arguments: str, options: tuple[str, ...] = (), **size: int) -> WatchedScreen:
        screen = WatchedScreen(server.command(*arguments, options=options), **size)
        screens.append(screen)
        return screen

    yield open_one
    for screen in screens:
        screen.close()
