"""`gpu-dev priority`."""

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.options import ID, api_options
from gpudev.sdk.errors import Forbidden
from gpudev.sdk.http.endpoints import prioritise_job
from gpudev.wire.reservations import PriorityRequest


# The parser takes a negative number for an option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job_id", metavar="ID", type=ID)
@click.argument("number", metavar="N", type=click.IntRange(-100, 100))
@api_options
def priority(job_id: str, number: int, as_json: bool, api_url: str | None) -> None:
    """Set the priority of a queued reservation. For operators.

    N is from -100 to 100, by default 0. Higher priorities start first, whatever the order of submission. Users whose
    guaranteed start becomes later are notified of the reason.

    \b
    gpu-dev priority 3f2a9c1e 10
    gpu-dev priority 3f2a9c1e -- -5
    """
    try:
        reply = CommandSession(api_url).api.fetch(prioritise_job(job_id, PriorityRequest(priority=number)))
    except Forbidden as error:
        raise error.with_next_step("Ask an operator of your system") from error
    if as_json:
        output.write_json(reply.raw)
        return
    job = reply.value
    label = f"Priority of {formatting.short_id(job.reservation_id)} is {job.priority}: "
    output.write_line(
        output.indent_below_label(label, output.clean(formatting.describe_situation(job, formatting.utc_now())), 4)
    )
