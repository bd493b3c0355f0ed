"""`gpu-dev run`."""

from pathlib import Path
from typing import Any

import click

from gpudev.cli import formatting, new_disks, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.reservations import run as running
from gpudev.cli.commands.reservations.reserve import build_request, reservation_options, submit_request
from gpudev.cli.commands.reservations.signals import signals_as_interrupt
from gpudev.cli.commands.sessions.connection_setup import TrailingCommand, route_options
from gpudev.cli.exit_codes import CliError, ExitCode, local_error, usage_error
from gpudev.sdk.remote import openssh, upload


@click.command(cls=TrailingCommand, options_metavar="[OPTIONS] -- COMMAND...")
@reservation_options
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="What is copied there first, less what its .gitignore names.  [default: the current folder]",
)
@click.option("--no-copy", is_flag=True, help="Copy nothing; the command runs in the home there.")
@click.option("--detach", "-d", is_flag=True, help="Do not stay: it ends with the command; see `gpu-dev logs`.")
@click.option("--keep", is_flag=True, help="With --detach: the reservation stays when the command has ended.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing; take the defaults.")
@route_options
@click.pass_obj
def run(
    command: tuple[str, ...],
    /,
    *,
    folder: Path | None,
    no_copy: bool,
    detach: bool,
    keep: bool,
    yes: bool,
    direct: bool,
    proxy: bool,
    api_url: str | None,
    **options: Any,
) -> None:
    """Reserve GPUs, run a command there on a copy of the current folder, and release them.

    Its output and its exit code are this command's. One argument after -- is a line for the shell; several arrive as
    they are. Ctrl-C ends it and releases the GPUs, while it waits too.

    \b
    gpu-dev run --gpus 1 -- python train.py --epochs 3
    gpu-dev run --gpus 8 --hours 2 -- 'make data && torchrun --nproc-per-node 8 train.py'
    gpu-dev run --detach -- python train.py

    With --detach the reservation ends when the command has; `gpu-dev logs` then has its exit code and last lines.
    """
    if not command:
        raise usage_error("say what to run, after --", "gpu-dev run --gpus 1 -- python train.py")
    if keep and not detach:
        raise usage_error("--keep is for what goes on by itself", "Give --detach too, or `gpu-dev reserve`")
    if no_copy and folder is not None:
        raise usage_error("--folder is copied, and with --no-copy nothing is: give one of them")
    copied = None if no_copy else _check_folder((folder or _current_folder()).resolve())
    wanted = running.RunRequest(command, copied, direct, proxy, keep)
    openssh.find_program()
    session = CommandSession(api_url)
    request = build_request(session, **options)
    may_ask = output.can_ask() and not yes
    if not new_disks.confirm_new_disk(session, request.disk_name, may_ask=may_ask, quiet=not may_ask):
        raise CliError(ExitCode.REJECTED, "nothing was run")
    with signals_as_interrupt():
        reserved = submit_request(
            session, request, count_given=options["gpus"] is not None, may_ask=may_ask, keeps_reservation=False
        )
        if not detach:
            click.get_current_context().exit(running.run_attached(session, reserved, wanted))
        short = formatting.short_id(running.run_detached(session, reserved, wanted).reservation_id)
    ends = "Nobody releases it before its end but you:" if keep else "It is released when the command has ended:"
    output.write_note(f"Begun on {short}. {ends}")
    output.write_note(f"  gpu-dev logs {short} --follow\n  gpu-dev cancel {short}")
    output.write_line(short)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise local_error("the current folder is gone", "Go to one that is there, or give --folder") from error


def _check_folder(folder: Path) -> Path:
    if folder in (Path.home(), Path(folder.anchor)):
        raise usage_error(
            f"{folder} is more than anybody means to copy", "Go to your project's folder, or give --folder or --no-copy"
        )
    upload.check_can_list(folder)
    return folder
