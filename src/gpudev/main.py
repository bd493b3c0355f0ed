"""`gpu-dev-server`: the server's commands. Each is thin: it reads settings, opens parts, and lets them run."""

import os
import sys

import click

from gpudev import __version__
from gpudev.domain.errors import GpuDevError

try:
    from gpudev.operating import (
        auditing,
        embedded,
        expire,
        invitations,
        keys,
        nodes,
        queue,
        reconcile,
        report,
        serving,
        users,
    )
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.startswith("gpudev"):
        raise
    # The light client alone is installed; its commands come along with this one.
    needs = f"gpu-dev-server needs the server's parts ({missing.name} is not installed)."
    sys.exit(f"{needs} Run `pip install 'gpu-dev[server]'`.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-dev-server")
def cli() -> None:
    """Run and operate a gpu-dev server. Settings come from the environment (docs/operations/settings.md)."""


for part in (serving, expire, reconcile, users, invitations, queue, report, embedded, keys, auditing, nodes):
    for command in part.COMMANDS:
        cli.add_command(command)


def main() -> None:
    """Every failure is one sentence and an exit code; GPU_DEV_DEBUG=1 shows where it came from."""
    try:
        cli(standalone_mode=True)
    except (GpuDevError, ValueError) as error:
        if os.environ.get("GPU_DEV_DEBUG"):
            raise
        click.echo(f"gpu-dev-server: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
