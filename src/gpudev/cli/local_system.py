"""`gpu-dev up` and `gpu-dev down`: start `gpu-dev-server` with the same arguments, which it alone parses."""

import os
import sys
from importlib.util import find_spec
from typing import Any

import click

from gpudev.cli.exit_codes import local_error

_SERVER_PACKAGES = ("fastapi", "asyncpg")


class PassThroughCommand(click.Command):
    """A command that passes on all arguments, including `--help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["arguments"] = tuple(args)
        return []


@click.command(cls=PassThroughCommand, add_help_option=False)
def up(**passed: Any) -> None:
    """Start the whole system on this machine."""
    _become_server("up", passed["arguments"])


@click.command(cls=PassThroughCommand, add_help_option=False)
def down(**passed: Any) -> None:
    """Stop the system on this machine."""
    _become_server("down", passed["arguments"])


def _become_server(command: str, arguments: tuple[str, ...]) -> None:
    missing = [name for name in _SERVER_PACKAGES if find_spec(name) is None]
    if missing:
        raise local_error(
            f"`gpu-dev {command}` requires the server extra ({', '.join(missing)} is not installed)",
            "Run `pip install 'gpu-dev[server]'`",
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "gpudev.main", command, *arguments])
