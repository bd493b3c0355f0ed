"""`gpu-dev completion`."""

import click
from click.shell_completion import get_completion_class

from gpudev.cli import COMPLETION_VARIABLE, formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.domain.reservations.lifecycle import LIVE
from gpudev.sdk.errors import ClientError
from gpudev.sdk.http import endpoints


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    \b
    bash:  echo 'eval "$(gpu-dev completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(gpu-dev completion zsh)"' >> ~/.zshrc
    fish:  gpu-dev completion fish > ~/.config/fish/completions/gpu-dev.fish
    """
    root = context.find_root()
    kind = get_completion_class(shell)
    assert kind is not None, "every shell that can be chosen has one"
    output.write_line(kind(root.command, {}, str(root.info_name), COMPLETION_VARIABLE).source())


# Completion values from the API: one request, no waiting, no errors.


def complete_reservation_ids(beginning: str) -> list[tuple[str, str]]:
    """Ids of this person's live reservations that begin so, each with what it is."""
    try:
        api = CommandSession().single_try_api()
        jobs = api.fetch(endpoints.list_jobs({"status": sorted(LIVE), "limit": 50})).value.jobs
    except ClientError:
        return []
    found = ((formatting.short_id(job.reservation_id), f"{formatting.hardware(job)}, {job.status}") for job in jobs)
    return [(short, text) for short, text in found if short.startswith(beginning.lower())]


def complete_disk_names(beginning: str, *, deleted: bool) -> list[tuple[str, str]]:
    """Names of this person's disks that begin so, each with how it is; `deleted`: those that can be restored, too."""
    from gpudev.sdk.http import disk_endpoints

    try:
        found = CommandSession().single_try_api().fetch(disk_endpoints.list_disks(deleted=deleted)).value.disks
    except ClientError:
        return []
    return [(disk.disk_name, disk.state) for disk in found if disk.disk_name.startswith(beginning)]
