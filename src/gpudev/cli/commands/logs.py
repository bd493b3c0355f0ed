"""`gpu-dev logs`."""

import json
import sys

import click

from gpudev.cli import history, output
from gpudev.cli.choosing import find_job
from gpudev.cli.options import ID
from gpudev.cli.session import Session
from gpudev.wire import codec


@click.command()
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on until it has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as JSON.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
def logs(job_id: str | None, follow: bool, as_json: bool, api_url: str | None) -> None:
    """Show what happened to a reservation: waiting, each step of its start, warnings, its end.

    ID may be shortened, or left out when there is only one.
    """
    session = Session(api_url)
    job = find_job(session, job_id).value
    for event in history.follow(session, job) if follow else history.read(session, job):
        output.say(json.dumps(codec.write(event)) if as_json else history.told(event))
        if follow:
            sys.stdout.flush()
