"""`gpu-dev-server`: the server's commands. Each is thin: it reads settings, opens parts, and lets them run.

A command is loaded when it is called: a process that only migrates must not pay for what the API needs.
"""

import os
import sys
from importlib import import_module
from typing import Any

import click

from gpudev.domain.errors import GpuDevError
from gpudev.version import __version__

COMMANDS = {
    "api": "services",
    "audit": "audit",
    "down": "embedded",
    "expire": "expire",
    "keys": "keys",
    "migrate": "services",
    "nodes": "nodes",
    "processor": "services",
    "proxy": "services",
    "queue": "queue",
    "reconcile": "reconcile",
    "report": "report",
    "stop-servers": "embedded",
    "up": "embedded",
    "users": "users",
}
"""Every command, and the module of gpudev.server_cli that has it among its COMMANDS."""


class LazyServerGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module: Any = import_module(f"gpudev.server_cli.{COMMANDS[cmd_name]}")
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.startswith("gpudev"):
                raise
            # The light client alone is installed; its commands come along with this one.
            needs = f"gpu-dev-server needs the server's parts ({missing.name} is not installed)."
            sys.exit(f"{needs} Run `pip install 'gpu-dev[server]'`.")
        found: click.Command = next(command for command in module.COMMANDS if command.name == cmd_name)
        return found


@click.group(cls=LazyServerGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-dev-server")
def cli() -> None:
    """Run and operate a gpu-dev server. Settings come from the environment (docs/operations/settings.md)."""


def main() -> None:
    """Every failure is one sentence and an exit code; GPU_DEV_DEBUG=1 shows where it came from."""
    # Parts run as users of their own and must be able to cross what we make, and nobody may write there, whatever the
    # shell that started us was told. What is for our eyes only says so itself.
    os.umask(0o022)
    try:
        cli(prog_name="gpu-dev-server", standalone_mode=True)
    except (GpuDevError, ValueError) as error:
        if os.environ.get("GPU_DEV_DEBUG"):
            raise
        click.echo(f"gpu-dev-server: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
