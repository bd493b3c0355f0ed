"""First steps of every command on a dev server: find it, wait for it, choose the route."""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.job_selection import choose_job
from gpudev.cli.commands.progress import check_ready, wait_until_ready
from gpudev.cli.exit_codes import CliError, ExitCode, local_error, usage_error
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.http.event_stream import has_ended
from gpudev.sdk.remote import ssh_route
from gpudev.sdk.remote.openssh import ProxyCommand
from gpudev.wire.reservations import JobView

_F = TypeVar("_F", bound=Callable[..., Any])


class TrailingCommand(click.Command):
    """What follows `--` is a command for the dev server and never read here, whether an id was given or not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        command: list[str] = []
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], args[at + 1 :]
        ctx.obj = tuple(command)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if command or not _is_about_trailing_words(error):
                raise
            step = f"What to run there comes after `--`; see `{ctx.command_path} --help`"
            raise usage_error(error.format_message(), step) from error


def _is_about_trailing_words(error: click.UsageError) -> bool:
    """Whether words were found wrong that may be meant for the dev server: no id, too many, options of no command of
    ours."""
    if isinstance(error, click.BadParameter):
        return error.param is not None and error.param.name == "job_id"
    return isinstance(error, click.NoSuchOption) or type(error) is click.UsageError


def route_options(function: _F) -> _F:
    """For every command that connects."""
    for option in (
        click.option("--api-url", metavar="URL", help="Address of the API, above all settings."),
        click.option("--proxy", is_flag=True, help="Through the API's HTTPS port, even if there is a straight way."),
        click.option("--direct", is_flag=True, help="Straight to the dev server, or not at all."),
    ):
        function = option(function)
    return function


def get_ready_job(session: CommandSession, job_id: str | None, *, wait: bool = True) -> JobView:
    """The reservation, once it is active. Raises for one that has ended."""
    reply = choose_job(session, job_id)
    _check_live(reply.value)
    if reply.value.status != Status.ACTIVE:
        if not wait:
            raise _not_ready(reply.value)
        reply = wait_until_ready(session, reply, quiet=not output.stdout_is_terminal())
        check_ready(reply.value)
    return reply.value


def choose_route(session: CommandSession, job: JobView, *, direct: bool, proxy: bool) -> ProxyCommand:
    return ssh_route.choose_route(session, job, formatting.utc_now(), direct=direct, proxy=proxy)


def parse_forwards(forwards: Sequence[str]) -> list[str]:
    """Each as ssh takes it, to this machine alone: 8888, 8888:80 or 8888:HOST:80."""
    options: list[str] = []
    for text in forwards:
        parts = text.split(":")
        here, there, port = parts[0], "127.0.0.1", parts[-1]
        if len(parts) == 3:
            there = parts[1]
        plain = there.isascii() and there[:1].isalnum() and there.replace(".", "").replace("-", "").isalnum()
        if len(parts) > 3 or not plain or not all(_is_port(one) for one in (here, port)):
            raise CliError(
                ExitCode.USAGE, f"{text[:80]!r} is nothing to forward", "It looks like 8888, 8888:80 or 8888:HOST:80"
            )
        options += ["-L", f"127.0.0.1:{here}:{there}:{port}"]
    return ["-o", "ExitOnForwardFailure=yes", *options] if options else []


def check_ports_are_free(forwards: Sequence[str]) -> None:
    """Before anything is waited for. Whoever takes one in the meantime is told of by ssh."""
    for text in forwards:
        here, *there = text.split(":")
        try:
            socket.create_server(("127.0.0.1", int(here))).close()
        except OSError as error:
            other = ":".join([str(int(here) % 50000 + 10000), *(there or [here])])
            why = os.strerror(error.errno) if error.errno else str(error)
            raise local_error(f"port {here} of this machine cannot be used: {why}", f"Take another: {other}") from error


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _check_live(job: JobView) -> None:
    if has_ended(job):
        raise CliError(
            ExitCode.REJECTED,
            f"{formatting.describe_end(job)}, so there is nothing to connect to",
            "`gpu-dev reserve` makes a new one",
            code="ended",
        )


def _not_ready(job: JobView) -> CliError:
    short = formatting.short_id(job.reservation_id)
    now_is = formatting.describe_situation(job, formatting.utc_now())
    step = f"`gpu-dev connect {short}` without --no-wait waits for it"
    return CliError(ExitCode.REJECTED, f"reservation {short} is {job.status} ({now_is})", step, code="not_ready")
