"""Asking for a reservation: the options of every command that does, and the request they make."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from gpudev.cli import prompts
from gpudev.cli.api_calls import ApiReply
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.reservations.signals import signals_ignored
from gpudev.cli.config import Preferences
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.cli.options import DISK, DURATION, HOURS, TEXT
from gpudev.cli.own_setup import choose_personalization as chosen_setup
from gpudev.cli.own_setup import personalization_options
from gpudev.sdk.errors import ClientError, Unreachable
from gpudev.sdk.remote import ssh_keys
from gpudev.wire.reservations import JobView, SubmitRequest

_F = TypeVar("_F", bound=Callable[..., Any])


def reservation_options(function: _F) -> _F:
    """`request_from` takes them."""
    function = personalization_options(function)
    for option in (
        click.option(
            "--max-wait", type=DURATION, help="Cancel it if it has not started after this long, such as 90m or 2h."
        ),
        click.option("--key", "key_file", type=click.Path(path_type=Path), help="File of public keys that may log in."),
        click.option("--github-user", type=TEXT, help="Whose published GitHub keys may log in."),
        click.option("--image", type=TEXT, help="Container image."),
        click.option("--disk", type=DISK, help="Your disk that becomes /home/dev; 'none' for scratch space."),
        click.option("--name", type=TEXT, help="A name for yourself."),
        click.option("--type", "--gpu-type", "gpu_type", type=TEXT, help="GPU type, such as a100."),
        click.option("--hours", type=HOURS, help="For how long, from when the dev server is ready."),
        click.option("--gpus", type=click.IntRange(min=0), help="How many GPUs; 0 for a CPU type.  [default: 1]"),
    ):
        function = option(function)
    return function


def build_request(
    session: CommandSession,
    *,
    gpus: int | None,
    hours: float | None,
    gpu_type: str | None,
    name: str | None,
    disk: str | None,
    image: str | None,
    github_user: str | None,
    key_file: Path | None,
    max_wait: float | None,
    **brought: Any,
) -> SubmitRequest:
    """From what was said by `reservation_options`, and the person's settings."""
    chosen = session.preferences
    setup = chosen_setup(session, **brought)
    access = ssh_keys.choose_login_keys(session, github_user, key_file)
    wanted_type = gpu_type or _default_type(chosen, gpus)
    return SubmitRequest(
        gpu_count=gpus if gpus is not None else _default_count(wanted_type),
        gpu_type=wanted_type,
        duration_hours=hours if hours is not None else chosen.default_hours,
        github_user=access.github_user,
        ssh_public_keys=None if access.public_keys is None else list(access.public_keys),
        name=name,
        image=image,
        disk_name=disk or chosen.default_disk,
        max_wait_hours=max_wait,
        environment=dict(setup.environment) or None,
        dotfiles=setup.dotfiles,
        startup_script=setup.startup_script,
    )


def _default_type(chosen: Preferences, gpus: int | None) -> str | None:
    """The person's usual type, unless the number of GPUs says that another kind is meant this time."""
    usual = chosen.default_gpu_type
    if usual is None or gpus is None:
        return usual
    return usual if prompts.is_cpu_type(usual) == (gpus == 0) else None


def _default_count(gpu_type: str | None) -> int:
    return 0 if gpu_type is not None and prompts.is_cpu_type(gpu_type) else 1


def submit_request(
    session: CommandSession, request: SubmitRequest, *, count_given: bool, may_ask: bool, keeps_reservation: bool = True
) -> ApiReply[JobView]:
    """Ask the API; when it wants a GPU type and somebody is there to name one, ask them and the API again. `counted`:
    they have said how many GPUs. Unless one `keeps` it, Ctrl-C leaves none behind."""
    try:
        return _submit_once(session, request, keeps_reservation=keeps_reservation)
    except ClientError as error:
        lacks_type = request.gpu_type is None and error.problem.get("field") == "gpu_type"
        if not (lacks_type and may_ask):
            raise
        chosen = prompts.ask_gpu_type(session, gpu_count=request.gpu_count if count_given else None)
        if chosen is None:
            raise
    count = request.gpu_count if count_given else _default_count(chosen)
    return _submit_once(
        session, replace(request, gpu_type=chosen, gpu_count=count), keeps_reservation=keeps_reservation
    )


def _submit_once(session: CommandSession, request: SubmitRequest, *, keeps_reservation: bool) -> ApiReply[JobView]:
    key = str(uuid.uuid4())
    try:
        return session.api.submit(request, idempotency_key=key)
    except KeyboardInterrupt:
        if not keeps_reservation:
            # Said once more under the same key, it tells which one was made.
            with signals_ignored():
                session.api.cancel(session.api.submit(request, idempotency_key=key).value.reservation_id)
            raise CliError(ExitCode.INTERRUPTED, "interrupted; nothing stays reserved") from None
        raise CliError(
            ExitCode.INTERRUPTED,
            "interrupted while asking, so the reservation may have been made all the same",
            "`gpu-dev list` shows it, `gpu-dev cancel ID` ends it",
        ) from None
    except Unreachable as error:
        if not error.sent:
            raise
        step = "The reservation may have been made all the same; `gpu-dev list` shows it"
        raise error.with_next_step(step) from error
    except ClientError as error:
        if error.code != "disk_held":
            raise
        step = "`--disk none` is scratch space, `gpu-dev disk list` shows your disks"
        raise error.with_next_step(step) from error
