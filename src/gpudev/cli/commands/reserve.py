"""`gpu-dev reserve`."""

from typing import Any

import click

from gpudev.cli import formatting, new_disks, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.reservations.progress import check_ready, wait_until_ready
from gpudev.cli.commands.reservations.reserve import build_request, reservation_options, submit_request
from gpudev.cli.commands.sessions import ssh_config
from gpudev.cli.options import api_options
from gpudev.wire.reservations import JobView


@click.command()
@reservation_options
@click.option("--no-wait", is_flag=True, help="Do not wait for the dev server.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing; take the defaults.")
@api_options
def reserve(*, no_wait: bool, yes: bool, as_json: bool, api_url: str | None, **options: Any) -> None:
    """Reserve GPUs, and wait until the dev server is ready.

    \b
    gpu-dev reserve --gpus 2 --hours 4
    gpu-dev reserve --gpus 0 --type cpu-x86 --no-wait
    """
    session = CommandSession(api_url)
    request = build_request(session, **options)
    may_ask = output.can_ask() and not yes and not as_json
    if not new_disks.confirm_new_disk(session, request.disk_name, may_ask=may_ask, quiet=as_json):
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
        output.write_line(_accepted_text(reply.value) if no_wait else ready_text(reply.value, written))


def ready_text(job: JobView, written: ssh_config.SshConfigChange | None = None) -> str:
    short = formatting.short_id(job.reservation_id)
    name = written.names.get(job.reservation_id) if written else None
    lines = [
        f": {formatting.hardware(job)}, {formatting.time_remaining(job, formatting.utc_now())}",
        f"  gpu-dev connect {short}",
        f"  ssh {name}" if name else f"  {job.ssh_command}",
    ]
    if written and written.included_now:
        lines.append("Note: ~/.ssh/config now includes your dev servers (`gpu-dev config set ssh_config off`: no more)")
    if job.warning:
        lines.append(f"Note: {job.warning}")
    return output.paint("Ready", "green") + "\n".join(output.clean(line) for line in lines)


def _accepted_text(job: JobView) -> str:
    short = formatting.short_id(job.reservation_id)
    now_is = formatting.describe_situation(job, formatting.utc_now())
    label = output.clean(f"Reserved: {short} ({formatting.hardware(job)}), {job.status}: ")
    told = output.indent_below_label(label, output.clean(now_is), len("Reserved: "))
    return f"{told}\n  gpu-dev status {short}\n  gpu-dev connect {short}"
