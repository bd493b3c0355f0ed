"""`gpu-dev-server`: the server's commands.

A command's module is imported when the command is called: a process that only migrates does not import the API.
"""

import os
import sys
from collections.abc import Mapping
from typing import ClassVar

import click

from gpudev.domain.errors import GpuDevError
from gpudev.lazy_group import LazyGroup
from gpudev.version import __version__


class ServerGroup(LazyGroup):
    locations: ClassVar[Mapping[str, str]] = {
        "api": "gpudev.server_cli.services:api",
        "audit": "gpudev.server_cli.audit:audit",
        "down": "gpudev.server_cli.embedded:down",
        "expire": "gpudev.server_cli.expire:expire",
        "keys": "gpudev.server_cli.users:keys",
        "migrate": "gpudev.server_cli.services:migrate",
        "nodes": "gpudev.server_cli.nodes:nodes",
        "processor": "gpudev.server_cli.services:processor",
        "proxy": "gpudev.server_cli.services:proxy",
        "queue": "gpudev.server_cli.queue:queue",
        "reconcile": "gpudev.server_cli.reconcile:reconcile",
        "report": "gpudev.server_cli.report:report",
        "stop-servers": "gpudev.server_cli.embedded:stop_servers",
        "up": "gpudev.server_cli.embedded:up",
        "users": "gpudev.server_cli.users:users",
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.startswith("gpudev"):
                raise
            # Only the client is installed.
            problem = f"gpu-dev-server requires the server extra ({missing.name} is not installed)."
            sys.exit(f"{problem} Run `pip install 'gpu-dev[server]'`.")


@click.group(cls=ServerGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-dev-server")
def cli() -> None:
    """Run and operate a gpu-dev server. Settings come from the environment (docs/operations/settings.md)."""


def main() -> None:
    """Errors are one sentence and an exit code; GPU_DEV_DEBUG=1 shows the traceback."""
    # Independent of the caller's umask: services run as other users, who must be able to traverse our folders but not
    # write there. Private files set their own mode.
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
