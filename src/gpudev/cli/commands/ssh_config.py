"""`gpu-dev ssh-config`."""

import json
import os

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.exit_codes import usage_error


@click.command("ssh-config")
@click.option("--remove", is_flag=True, help="Take our line out of ~/.ssh/config, and our file away.")
@click.option("--json", "as_json", is_flag=True, help="Print the names as JSON.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
def configure(remove: bool, as_json: bool, api_url: str | None) -> None:
    """Give your dev servers names that ssh, scp, rsync and every editor know, such as gpu-dev-mytrain.

    They are written to ~/.gpu-dev/ssh_config, which ~/.ssh/config includes from then on. `gpu-dev reserve` does this by
    itself, unless `gpu-dev config set ssh_config off` says otherwise.
    """
    if remove and as_json:
        raise usage_error("give --remove or --json, not both")
    if remove:
        gone = ssh_config.remove_config(os.environ)
        output.write_line("Removed." if gone else "There was nothing of ours.")
        return
    session = CommandSession(api_url)
    written = ssh_config.refresh_config(session, formatting.utc_now())
    if as_json:
        output.write_line(json.dumps(written.names))
        return
    if written.included_now:
        output.write_note(
            f"{ssh_config.user_config_file(session.env)} now includes {ssh_config.own_config_file(session.env)}"
        )
    for job_id, name in written.names.items():
        output.write_line(f"{formatting.short_id(job_id)}  ssh {name}")
    if not written.names:
        output.write_line("You have no dev server at the moment.")
