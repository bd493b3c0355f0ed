"""`gpu-dev completion`, and completion values from the API."""

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
    """Print the completion script for a shell.

    \b
    bash:  echo 'eval "$(gpu-dev completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(gpu-dev completion zsh)"' >> ~/.zshrc
    fish:  gpu-dev completion fish > ~/.config/fish/completions/gpu-dev.fish
    """
    root = context.find_root()
    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click supports every choice"
    output.write_line(completion_class(root.command, {}, str(root.info_name), COMPLETION_VARIABLE).source())


# Completion values: one request without retries; errors give no values.


def complete_reservation_ids(prefix: str) -> list[tuple[str, str]]:
    """Ids of the user's live reservations with this prefix, with descriptions."""
    try:
        api = CommandSession().single_try_api()
        jobs = api.fetch(endpoints.list_jobs({"status": sorted(LIVE), "limit": 50})).value.jobs
    except ClientError:
        return []
    found = ((formatting.short_id(job.reservation_id), f"{formatting.hardware(job)}, {job.status}") for job in jobs)
    return [(short, text) for short, text in found if short.startswith(prefix.lower())]


def complete_disk_names(prefix: str, *, deleted: bool) -> list[tuple[str, str]]:
    """Names of the user's disks with this prefix, with states; `deleted`: include restorable ones."""
    from gpudev.sdk.http import disk_endpoints

    try:
        found = CommandSession().single_try_api().fetch(disk_endpoints.list_disks(deleted=deleted)).value.disks
    except ClientError:
        return []
    return [(disk.disk_name, disk.state) for disk in found if disk.disk_name.startswith(prefix)]
