"""`gpu-dev connect`."""

import click

from gpudev.cli import output, ssh, wording
from gpudev.cli.choosing import find_job
from gpudev.cli.exits import CliError, Exit
from gpudev.cli.options import ID
from gpudev.cli.session import Session
from gpudev.cli.waiting import check_ready, wait_until_ready
from gpudev.domain.lifecycle import Status
from gpudev.wire.jobs import JobView


class ThenCommand(click.Command):
    """What follows `--` is a command for the dev server and never read here, whether an id was given or not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        command: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], args[at + 1 :]
        ctx.obj = tuple(command)
        return super().parse_args(ctx, args)


@click.command(cls=ThenCommand, options_metavar="[OPTIONS]")
@click.argument("job_id", metavar="[ID] [-- COMMAND...]", type=ID, required=False)
@click.option("--no-wait", is_flag=True, help="Do not wait for a dev server that is not ready yet.")
@click.option("--api-url", metavar="URL", help="Address of the API, above all settings.")
@click.pass_obj
def connect(command: tuple[str, ...], job_id: str | None, no_wait: bool, api_url: str | None) -> None:
    """Open a shell on a dev server, or run a command there.

    ID may be shortened, or left out when there is only one. One argument after -- is a line for the remote shell;
    several arrive as they are.

    \b
    gpu-dev connect 3f2a9c1e
    gpu-dev connect 3f2a9c1e -- nvidia-smi -L
    gpu-dev connect -- 'cd project && make'
    """
    program = ssh.find_program()
    session = Session(api_url)
    reply = find_job(session, job_id)
    _check_live(reply.value)
    if reply.value.status != Status.ACTIVE:
        if no_wait:
            raise _not_ready(reply.value)
        reply = wait_until_ready(session, reply, quiet=not output.stdout_is_terminal())
        check_ready(reply.value)
    if ssh.is_fresh(reply.value, wording.utc_now()):
        ssh.wait_until_answers(reply.value)
    ssh.become(ssh.command_line(program, reply.value, command, session.env, tty=output.can_ask()))


def _check_live(job: JobView) -> None:
    if wording.has_ended(job):
        raise CliError(
            Exit.REFUSED,
            f"{wording.ending(job)}, so there is nothing to connect to",
            "`gpu-dev reserve` makes a new one",
            code="ended",
        )


def _not_ready(job: JobView) -> CliError:
    short = wording.short_id(job.reservation_id)
    now_is = wording.situation(job, wording.utc_now())
    step = f"`gpu-dev connect {short}` without --no-wait waits for it"
    return CliError(Exit.REFUSED, f"reservation {short} is {job.status} ({now_is})", step, code="not_ready")
