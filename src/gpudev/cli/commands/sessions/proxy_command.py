"""`gpu-dev proxy-command`, started by ssh to reach a dev server."""

import click

from gpudev.cli.options import ID
from gpudev.cli.proxy_tunnel import run_tunnel


@click.command("proxy-command")
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--auto", is_flag=True, help="Connect directly to the dev server if it is reachable.")
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
def proxy_command(job_id: str, auto: bool, api_url: str | None) -> None:
    """Connect standard input and output to a dev server's ssh server, through the API's HTTPS port.

    \b
    ssh -o ProxyCommand='gpu-dev proxy-command 3f2a9c1e' dev@gpu-dev
    """
    run_tunnel(job_id, auto=auto, api_url=api_url)
