"""`gpu-dev-server`: the server's commands. Each is thin: it reads settings, opens parts, and lets them run.

A command is loaded when it is called: a process that only migrates must not pay for what the API needs.
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
        "keys": "gpudev.server_cli.keys:keys",
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
            # The light client alone is installed; its commands come along with this one.
            needs = f"gpu-dev-server needs the server's parts ({missing.name} is not installed)."
            sys.exit(f"{needs} Run `pip install 'gpu-dev[server]'`.")


@click.group(cls=ServerGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
