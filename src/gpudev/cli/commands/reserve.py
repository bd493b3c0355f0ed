"""`gpu-dev reserve`."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpudev.cli import asking, new_disks, output, ssh_config, wording
from gpudev.cli.api import Reply
from gpudev.cli.exits import CliError, Exit
from gpudev.cli.options import DISK, HOURS, SPAN, TEXT, api_options
from gpudev.cli.own_setup import chosen as chosen_setup
from gpudev.cli.own_setup import setup_options
from gpudev.cli.preferences import Preferences
from gpudev.cli.session import Session
from gpudev.cli.waiting import check_ready, wait_until_ready
from gpudev.sdk import ssh_keys
from gpudev.sdk.errors import ClientError, Unreachable
from gpudev.wire.jobs import JobView, SubmitRequest


@click.command()
@click.option("--gpus", type=click.IntRange(min=0), help="How many GPUs; 0 for a CPU type.  [default: 1]")
@click.option("--hours", type=HOURS, help="For how long, from when the dev server is ready.")
@click.option("--type", "--gpu-type", "gpu_type", type=TEXT, help="GPU type, such as a100.")
@click.option("--name", type=TEXT, help="A name for yourself.")
@click.option("--disk", type=DISK, help="Your disk that becomes /home/dev; 'none' for scratch space.")
@click.option("--image", type=TEXT, help="Container image.")
@click.option("--github-user", type=TEXT, help="Whose published GitHub keys may log in.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="File of public keys that may log in.")
@click.option("--max-wait", type=SPAN, help="Cancel it if it has not started after this long, such as 90m or 2h.")
@setup_options
@click.option("--no-wait", is_flag=True, help="Do not wait for the dev server.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing; take the defaults.")
@api_options
def reserve(*, no_wait: bool, yes: bool, as_json: bool, api_url: str | None, **wishes: Any) -> None:
    """Reserve GPUs, and wait until the dev server is ready.

    \b
    gpu-dev reserve --gpus 2 --hours 4
    gpu-dev reserve --gpus 0 --type cpu-x86 --no-wait
    """
    session = Session(api_url)
    request = _request(session, **wishes)
    may_ask = output.can_ask() and not yes and not as_json
    if not new_disks.is_agreed(session, request.disk_name, may_ask=may_ask, quiet=as_json):
        output.say("Nothing was reserved.")
        return
    reply = _submit(session, request, counted=wishes["gpus"] is not None, may_ask=may_ask)
    if not no_wait:
        reply = wait_until_ready(session, reply, quiet=as_json)
    if as_json:
        output.say_json(reply.raw)
    written = None
    if not no_wait:
        check_ready(reply.value)
        written = ssh_config.keep_up(session, reply.value, wording.utc_now())
    if not as_json:
        output.say(_accepted(reply.value) if no_wait else ready_text(reply.value, written))


def _request(
    session: Session,
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
    chosen = session.preferences
    setup = chosen_setup(session, **brought)
    access = ssh_keys.choose(session, github_user, key_file)
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
    return usual if asking.is_cpu(usual) == (gpus == 0) else None


def _default_count(gpu_type: str | None) -> int:
    return 0 if gpu_type is not None and asking.is_cpu(gpu_type) else 1


def _submit(session: Session, request: SubmitRequest, *, counted: bool, may_ask: bool) -> Reply[JobView]:
    """Ask the API; when it wants a GPU type and somebody is there to name one, ask them and the API again."""
    try:
        return _submit_once(session, request)
    except ClientError as error:
        lacks_type = request.gpu_type is None and error.problem.get("field") == "gpu_type"
        if not (lacks_type and may_ask):
            raise
        chosen = asking.ask_gpu_type(session, gpu_count=request.gpu_count if counted else None)
        if chosen is None:
            raise
    count = request.gpu_count if counted else _default_count(chosen)
    return _submit_once(session, replace(request, gpu_type=chosen, gpu_count=count))


def _submit_once(session: Session, request: SubmitRequest) -> Reply[JobView]:
    try:
        return session.api.submit(request, idempotency_key=str(uuid.uuid4()))
    except KeyboardInterrupt:
        raise CliError(
            Exit.INTERRUPTED,
            "interrupted while asking, so the reservation may have been made all the same",
            "`gpu-dev list` shows it, `gpu-dev cancel ID` ends it",
        ) from None
    except Unreachable as error:
        if not error.sent:
            raise
        step = "The reservation may have been made all the same; `gpu-dev list` shows it"
        raise error.advising(step) from error
    except ClientError as error:
        if error.code != "disk_held":
            raise
        step = "`--disk none` is scratch space, `gpu-dev disk list` shows your disks"
        raise error.advising(step) from error


def ready_text(job: JobView, written: ssh_config.Written | None = None) -> str:
    short = wording.short_id(job.reservation_id)
    name = written.names.get(job.reservation_id) if written else None
    lines = [
        f": {wording.hardware(job)}, {wording.remaining(job, wording.utc_now())}",
        f"  gpu-dev connect {short}",
        f"  ssh {name}" if name else f"  {job.ssh_command}",
    ]
    if written and written.included_now:
        lines.append("Note: ~/.ssh/config now includes your dev servers (`gpu-dev config set ssh_config off`: no more)")
    if job.warning:
        lines.append(f"Note: {job.warning}")
    return output.paint("Ready", "green") + "\n".join(output.clean(line) for line in lines)


def _accepted(job: JobView) -> str:
    short = wording.short_id(job.reservation_id)
    now_is = wording.situation(job, wording.utc_now())
    label = output.clean(f"Reserved: {short} ({wording.hardware(job)}), {job.status}: ")
    told = output.hang(label, output.clean(now_is), len("Reserved: "))
    return f"{told}\n  gpu-dev status {short}\n  gpu-dev connect {short}"
