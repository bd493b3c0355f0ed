"""`gpu-dev logs`."""

import json
import sys

import click

from gpudev.cli import output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.reservations.status import follow_history, format_event, read_history
from gpudev.cli.commands.sessions.connection_setup import choose_route
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.cli.job_selection import choose_job
from gpudev.cli.options import ID
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.remote import openssh, remote_commands
from gpudev.wire import codec
from gpudev.wire.reservations import JobView


@click.command()
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--follow", "-f", is_flag=True, help="Follow until it has ended.")
@click.option("--output", "only_output", is_flag=True, help="Only the output of `gpu-dev run --detach`.")
@click.option("--json", "as_json", is_flag=True, help="Print each event of the history as JSON.")
@click.option("--api-url", metavar="URL", help="API address; overrides all settings.")
def logs(job_id: str | None, *, follow: bool, only_output: bool, as_json: bool, api_url: str | None) -> None:
    """Show the history of a reservation: queue, start-up steps, warnings, end.

    For a reservation of `gpu-dev run --detach`, the output of the command follows; with --follow, until the command
    ends, with its exit code. The output is available while the dev server exists. After that, the history has the
    exit code and the last lines.

    ID is an id, a prefix of one, or a name; it may be omitted if you have only one reservation.

    \b
    gpu-dev logs
    gpu-dev logs training --follow
    """
    if only_output and as_json:
        raise usage_error("give --output or --json, not both")
    session = CommandSession(api_url)
    job = choose_job(session, job_id, may_ask=not as_json).value
    shows_output = only_output or (remote_commands.is_detached_run(session.env, job.reservation_id) and not as_json)
    if only_output and job.status != Status.ACTIVE:
        raise CliError(
            ExitCode.REJECTED,
            f"the reservation is {job.status}; output is available only while it is active",
            "`gpu-dev logs` without --output shows the last lines of a command that has ended",
        )
    if not only_output:
        _write_history(session, job, follow=follow and not shows_output, as_json=as_json)
    if shows_output and job.status == Status.ACTIVE:
        _show_output(session, job, follow=follow)


def _write_history(session: CommandSession, job: JobView, *, follow: bool, as_json: bool) -> None:
    for event in follow_history(session, job) if follow else read_history(session, job):
        output.write_line(json.dumps(codec.encode_model(event)) if as_json else format_event(event))
        if follow:
            sys.stdout.flush()


def _show_output(session: CommandSession, job: JobView, *, follow: bool) -> None:
    route = choose_route(session, job, direct=False, proxy=False)
    more = ["-T", "-n", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
    command = remote_commands.output_command(follow=follow)
    openssh.replace_process(
        openssh.command_line(openssh.find_program(), job, command, session.env, tty=False, proxy=route, more=more)
    )
