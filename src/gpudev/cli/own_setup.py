"""The options and settings by which people say what they bring to a dev server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.reservations import personalization
from gpudev.domain.sessions.personalization import Personalization

_F = TypeVar("_F", bound=Callable[..., Any])


def personalization_options(function: _F) -> _F:
    """For every command that starts dev servers; `chosen` takes them."""
    for option in (
        click.option(
            "--startup-script", metavar="FILE", help="Run this there when it is ready; 'none' for none this time."
        ),
        click.option("--dotfiles", metavar="URL", help="Your dotfiles' git repository; 'none' for none this time."),
        click.option(
            "--env-file",
            "env_files",
            metavar="FILE",
            multiple=True,
            help="Variables for it, NAME=VALUE lines; may be given again; 'none' for none of the settings'.",
        ),
        click.option(
            "--env",
            "variables",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="A variable for it, or one you have here; may be given again.",
        ),
    ):
        function = option(function)
    return function


def choose_personalization(
    session: CommandSession,
    *,
    variables: tuple[str, ...] = (),
    env_files: tuple[str, ...] = (),
    dotfiles: str | None = None,
    startup_script: str | None = None,
) -> Personalization:
    usual = session.preferences
    files = [usual.env_file, *env_files]
    if personalization.NONE in env_files:
        files = list(env_files)
    script = startup_script or usual.startup_script
    return personalization.collect_personalization(
        env_files=[Path(name) for name in files if name is not None and name != personalization.NONE],
        variables=variables,
        dotfiles=_unless_none(dotfiles or usual.dotfiles),
        startup_script=None if _unless_none(script) is None else Path(str(script)),
        environ=session.env,
    )


def _unless_none(text: str | None) -> str | None:
    return None if text == personalization.NONE else text
