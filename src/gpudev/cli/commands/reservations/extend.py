"""`gpu-dev extend`."""

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.cli.options import HOURS, ID, api_options
from gpudev.sdk.errors import Unreachable
from gpudev.sdk.http.endpoints import extend_job
from gpudev.wire.reservations import ExtendRequest


@click.command()
@click.argument("job_id", metavar="ID", type=ID)
@click.option("--hours", type=HOURS, required=True, help="Hours to add.")
@api_options
def extend(job_id: str, hours: float, as_json: bool, api_url: str | None) -> None:
    """Extend an active reservation."""
    try:
        session = CommandSession(api_url)
        reply = session.api.fetch(extend_job(job_id, ExtendRequest(extension_hours=hours)))
    except Unreachable as error:
        if error.sent:
            step = f"It may have been extended; `gpu-dev status {formatting.short_id(job_id)}` shows it"
            raise CliError(ExitCode.UNREACHABLE, error.message, step) from error
        raise
    if ssh_config.own_config_file(session.env).exists():
        ssh_config.add_reservation(session, reply.value, formatting.utc_now())
    if as_json:
        output.write_json(reply.raw)
        return
    job = reply.value
    output.write_line(
        f"Extended: {formatting.short_id(job.reservation_id)} {formatting.time_remaining(job, formatting.utc_now())}."
    )
