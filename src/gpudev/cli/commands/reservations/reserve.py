"""`gpu-dev reserve`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from gpudev.cli import formatting, output, prompts
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.progress import check_ready, wait_until_ready
from gpudev.cli.commands.reservations.personalization import choose_personalization, personalization_options
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.commands.signals import signals_ignored
from gpudev.cli.exit_codes import CliError, ExitCode
from gpudev.cli.options import DISK, DURATION, GPU_TYPE, TEXT, SectionedCommand, api_options
from gpudev.sdk.errors import ClientError, Unreachable
from gpudev.sdk.http.endpoints import ApiReply, cancel_job, submit_job
from gpudev.sdk.reserve_options import ReserveOptions, request_from_options
from gpudev.sdk.user_files import Preferences
from gpudev.wire.reservations import JobView, SubmitRequest

# Options of every command that submits a reservation, and the request built from them.


_F = TypeVar("_F", bound=Callable[..., Any])


def reservation_options(function: _F) -> _F:
    """For `build_request`."""
    function = personalization_options(function)
    for option in (
        click.option(
            "--max-wait", type=DURATION, help="Cancel it if it has not started after this time, e.g. 90m or 2h."
        ),
        click.option(
            "--key", "key_file", type=click.Path(path_type=Path), help="File with public keys that may log in."
        ),
        click.option("--github-user", type=TEXT, help="GitHub user whose public keys may log in."),
        click.option("--image", type=TEXT, help="Container image."),
        click.option("--disk", type=DISK, help="Disk to mount as /home/dev; 'none' for scratch space."),
        click.option("--name", "-n", type=TEXT, help="Name of the reservation; commands take it instead of the id."),
        click.option("--type", "--gpu-type", "-t", "gpu_type", type=GPU_TYPE, help="GPU type, e.g. a100."),
        click.option("--hours", "-H", type=DURATION, help="Duration from when the dev server is ready: 4, 90m, 1h30."),
        click.option(
            "--gpus",
            "-g",
            metavar="N",
            type=click.IntRange(min=0),
            help="Number of GPUs; 0 for a CPU type.  [default: 1]",
        ),
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
    **personalization: Any,
) -> SubmitRequest:
    """From the options of `reservation_options` and the preferences."""
    preferences = session.preferences
    setup = choose_personalization(session, **personalization)
    chosen_type = gpu_type or _default_type(preferences, gpus)
    options = ReserveOptions(
        gpus=gpus if gpus is not None else _default_count(chosen_type),
        gpu_type=chosen_type,
        hours=hours if hours is not None else preferences.default_hours,
        name=name,
        disk=disk or preferences.default_disk,
        image=image,
        github_user=github_user,
        key_file=key_file,
        max_wait_hours=max_wait,
        environment=setup.environment or None,
        dotfiles=setup.dotfiles,
        startup_script=setup.startup_script,
    )
    return request_from_options(session, options)


def _default_type(preferences: Preferences, gpus: int | None) -> str | None:
    """The preferred type, unless the number of GPUs does not match it (0 GPUs means a CPU type)."""
    default = preferences.default_gpu_type
    if default is None or gpus is None:
        return default
    return default if prompts.is_cpu_type(default) == (gpus == 0) else None


def _default_count(gpu_type: str | None) -> int:
    return 0 if gpu_type is not None and prompts.is_cpu_type(gpu_type) else 1


def submit_request(
    session: CommandSession, request: SubmitRequest, *, count_given: bool, may_ask: bool, keeps_reservation: bool = True
) -> ApiReply[JobView]:
    """Submit; if the API requires a GPU type and `may_ask`, ask the user and submit again. `count_given`: the user gave
    the number of GPUs. Unless `keeps_reservation`, Ctrl-C during the submit cancels the reservation."""
    reply = _submit_or_ask(
        session, request, count_given=count_given, may_ask=may_ask, keeps_reservation=keeps_reservation
    )
    if reply.value.scratch_reason:
        output.write_note(scratch_note(reply.value.scratch_reason))
    return reply


def scratch_note(reason: str) -> str:
    return f"Note: /home/dev is scratch space and is lost at the end of this reservation, because {reason}"


def _submit_or_ask(
    session: CommandSession, request: SubmitRequest, *, count_given: bool, may_ask: bool, keeps_reservation: bool
) -> ApiReply[JobView]:
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
    submission = submit_job(request)
    try:
        return session.api.fetch(submission)
    except KeyboardInterrupt:
        if not keeps_reservation:
            # The same idempotency key returns the reservation that the first try created.
            with signals_ignored():
                session.api.fetch(cancel_job(session.api.fetch(submission).value.reservation_id))
            raise CliError(ExitCode.INTERRUPTED, "interrupted; nothing is reserved") from None
        raise CliError(
            ExitCode.INTERRUPTED,
            "interrupted during the submit; the reservation may have been created",
            "`gpu-dev list` shows it, `gpu-dev cancel ID` cancels it",
        ) from None
    except Unreachable as error:
        if not error.sent:
            raise
        step = "The reservation may have been created; `gpu-dev list` shows it"
        raise error.with_next_step(step) from error
    except ClientError as error:
        if error.code != "disk_held":
            raise
        step = "Use `--disk none` for scratch space; `gpu-dev disk list` shows your disks"
        raise error.with_next_step(step) from error


@click.command(cls=SectionedCommand)
@reservation_options
@click.option("--no-wait", is_flag=True, help="Do not wait for the dev server.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask; use defaults.")
@api_options
def reserve(*, no_wait: bool, yes: bool, as_json: bool, api_url: str | None, **options: Any) -> None:
    """Reserve GPUs, and wait until the dev server is ready.

    \b
    gpu-dev reserve --gpus 2 --hours 4
    gpu-dev reserve -g 2 -t h100 -H 1h30 -n training
    gpu-dev reserve --gpus 0 --type cpu-x86 --no-wait
    """
    session = CommandSession(api_url)
    request = build_request(session, **options)
    may_ask = output.can_ask() and not yes and not as_json
    if not prompts.confirm_new_disk(session, request.disk_name, may_ask=may_ask, quiet=as_json):
        output.write_line("Nothing was reserved.")
        return
    reply = submit_request(session, request, count_given=options["gpus"] is not None, may_ask=may_ask)
    if not no_wait:
        reply = wait_until_ready(session, reply, quiet=as_json)
    if as_json:
        output.write_json(reply.raw)
    written = None
    if not no_wait:
        check_ready(reply.value)
        written = ssh_config.add_reservation(session, reply.value, formatting.utc_now())
    if not as_json:
        output.write_line(_accepted_text(reply.value) if no_wait else ready_text(session.env, reply.value, written))


def ready_text(env: Mapping[str, str], job: JobView, written: ssh_config.SshConfigChange | None = None) -> str:
    short = formatting.short_id(job.reservation_id)
    lines = [
        f": {formatting.hardware(job)}, {formatting.time_remaining(job, formatting.utc_now())}",
        f"  gpu-dev connect {short}",
        f"  {ssh_config.ssh_line(env, job)}",
    ]
    if written and written.included_now:
        lines.append("Note: ~/.ssh/config now includes your dev servers (disable: `gpu-dev config set ssh_config off`)")
    if job.warning and not job.scratch_reason:  # that was said when it was submitted
        lines.append(f"Note: {job.warning}")
    return output.paint("Ready", "green") + "\n".join(output.clean(line) for line in lines)


def _accepted_text(job: JobView) -> str:
    short = formatting.short_id(job.reservation_id)
    situation = formatting.describe_situation(job, formatting.utc_now())
    label = output.clean(f"Reserved: {short} ({formatting.hardware(job)}), {job.status}: ")
    text = output.indent_below_label(label, output.clean(situation), len("Reserved: "))
    return f"{text}\n  gpu-dev status {short}\n  gpu-dev connect {short}"
