"""Shared steps of commands on a dev server: select it, wait for it, choose the route."""

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.progress import check_ready, wait_until_ready
from gpudev.cli.exit_codes import CliError, ExitCode, local_error, usage_error
from gpudev.cli.job_selection import choose_job
from gpudev.cli.options import SectionedCommand
from gpudev.domain.reservations.lifecycle import Status
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.sdk.http.event_stream import has_ended
from gpudev.sdk.remote import ssh_route
from gpudev.sdk.remote.openssh import ProxyCommand
from gpudev.wire.reservations import JobView

_F = TypeVar("_F", bound=Callable[..., Any])


class TrailingCommand(SectionedCommand):
    """Everything after `--` is a command for the dev server and is not parsed here."""

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
            step = f"A command for the dev server comes after `--`; see `{ctx.command_path} --help`"
            raise usage_error(error.format_message(), step) from error


def _is_about_trailing_words(error: click.UsageError) -> bool:
    """Whether the rejected words may be meant for the dev server: an invalid id, extra arguments, unknown options."""
    if isinstance(error, click.BadParameter):
        return error.param is not None and error.param.name == "job_id"
    return isinstance(error, click.NoSuchOption) or type(error) is click.UsageError


def route_options(function: _F) -> _F:
    """Options of every command that connects."""
    for option in (
        click.option("--api-url", metavar="URL", help="API address; overrides all settings."),
        click.option(
            "--proxy", is_flag=True, help="Connect through the API's HTTPS port, even if a direct connection works."
        ),
        click.option("--direct", is_flag=True, help="Connect directly to the dev server, or fail."),
    ):
        function = option(function)
    return function


def get_ready_job(session: CommandSession, job_id: str | None, *, wait: bool = True, may_ask: bool = True) -> JobView:
    """The reservation, once it is active. Raises for one that has ended."""
    reply = _choose_job(session, job_id, may_ask=may_ask)
    _check_live(reply.value)
    if reply.value.status != Status.ACTIVE:
        if not wait:
            raise _not_ready(reply.value)
        reply = wait_until_ready(session, reply, quiet=not output.stdout_is_terminal())
        check_ready(reply.value)
    return reply.value


def _choose_job(session: CommandSession, job_id: str | None, *, may_ask: bool) -> ApiReply[JobView]:
    try:
        return choose_job(session, job_id, may_ask=may_ask)
    except CliError as error:
        context = click.get_current_context()
        if error.exit_code is not ExitCode.NOT_FOUND or context.obj != ():
            raise
        # `gpu-dev connect nvidia-smi`: the word may be meant for the dev server.
        raise error.with_next_step(f"{error.next_step}; a command for the dev server comes after `--`") from error


def choose_route(session: CommandSession, job: JobView, *, direct: bool, proxy: bool) -> ProxyCommand:
    return ssh_route.choose_route(session, job, formatting.utc_now(), direct=direct, proxy=proxy)


def parse_forwards(forwards: Sequence[str]) -> list[str]:
    """ssh options for 8888, 8888:80 or 8888:HOST:80, bound to the loopback address."""
    options: list[str] = []
    for text in forwards:
        parts = text.split(":")
        here, there, port = parts[0], "127.0.0.1", parts[-1]
        if len(parts) == 3:
            there = parts[1]
        plain = there.isascii() and there[:1].isalnum() and there.replace(".", "").replace("-", "").isalnum()
        if len(parts) > 3 or not plain or not all(_is_port(one) for one in (here, port)):
            raise CliError(ExitCode.USAGE, f"invalid port {text[:80]!r} (expected e.g. 8888, 8888:80 or 8888:HOST:80)")
        options += ["-L", f"127.0.0.1:{here}:{there}:{port}"]
    return ["-o", "ExitOnForwardFailure=yes", *options] if options else []


def check_ports_are_free(session: CommandSession, forwards: Sequence[str]) -> None:
    """Checked before any wait. ssh reports a port that is taken later."""
    for text in forwards:
        here, *there = text.split(":")
        try:
            socket.create_server(("127.0.0.1", int(here))).close()
        except OSError as error:
            other = f"Use another one: {':'.join([str(int(here) % 50000 + 10000), *(there or [here])])}"
            if session.address.is_local and there in ([], [here]):
                other += f". If the dev server shares this machine's network, 127.0.0.1:{here} is it already"
            why = os.strerror(error.errno) if error.errno else str(error)
            raise local_error(f"cannot use local port {here}: {why}", other) from error


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _check_live(job: JobView) -> None:
    if has_ended(job):
        raise CliError(
            ExitCode.REJECTED,
            f"{formatting.describe_end(job)}; there is no dev server to connect to",
            "Create a new one with `gpu-dev reserve`",
            code="ended",
        )


def _not_ready(job: JobView) -> CliError:
    short = formatting.short_id(job.reservation_id)
    situation = formatting.describe_situation(job, formatting.utc_now())
    step = f"Wait for it with `gpu-dev connect {short}`"
    return CliError(ExitCode.REJECTED, f"reservation {short} is {job.status} ({situation})", step, code="not_ready")
