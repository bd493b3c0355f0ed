"""`gpu-dev completion`, and completion values from the API."""

import click
from click.shell_completion import CompletionItem, get_completion_class

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
    """Ids of the user's live reservations with this prefix, or their names, with descriptions."""
    try:
        api = CommandSession().single_try_api()
        jobs = api.fetch(endpoints.list_jobs({"status": sorted(LIVE), "limit": 50})).value.jobs
    except ClientError:
        return []
    found: list[tuple[str, str]] = []
    for job in jobs:
        short, name = formatting.short_id(job.reservation_id), job.name or ""
        text = output.clean(", ".join(part for part in (formatting.hardware(job), job.status, name) if part))
        if short.startswith(prefix.lower()):
            found.append((short, text))
        elif prefix and name.startswith(prefix) and name.isprintable() and " " not in name:
            found.append((name, text))
    return found


def complete_gpu_types(prefix: str) -> list[tuple[str, str]]:
    """GPU types that have nodes, with the number of free GPUs."""
    from gpudev.sdk.http.cluster_endpoints import list_availability

    try:
        types = CommandSession().single_try_api().fetch(list_availability()).value.gpu_types
    except ClientError:
        return []
    with_nodes = [one for one in types if one.total_cluster_gpus and one.gpu_type.startswith(prefix.lower())]
    return [(one.gpu_type, f"{one.available_gpus} of {one.total_cluster_gpus} free") for one in with_nodes]


def complete_snapshots(disk: str, prefix: str) -> list[tuple[str, str]]:
    """Ids of the disk's snapshots, newest first, with their times."""
    from gpudev.sdk.http import disk_endpoints

    try:
        found = CommandSession().single_try_api().fetch(disk_endpoints.list_snapshots(disk)).value.snapshots
    except ClientError:
        return []
    shown = [(formatting.short_id(one.snapshot_id), one) for one in found if one.usable]
    now = formatting.utc_now()
    return [(short, formatting.local_time(one.created_at, now)) for short, one in shown if short.startswith(prefix)]


def complete_copy_paths(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Local files, and the beginnings of remote paths."""
    if ":" in prefix:
        return []
    remote = [] if "/" in prefix or "." in prefix else complete_reservation_ids(prefix)
    return [CompletionItem(prefix, type="file"), *(CompletionItem(f"{name}:", help=text) for name, text in remote)]


def complete_disk_names(prefix: str, *, deleted: bool) -> list[tuple[str, str]]:
    """Names of the user's disks with this prefix, with states; `deleted`: include restorable ones."""
    from gpudev.sdk.http import disk_endpoints

    try:
        found = CommandSession().single_try_api().fetch(disk_endpoints.list_disks(deleted=deleted)).value.disks
    except ClientError:
        return []
    return [(disk.disk_name, disk.state) for disk in found if disk.disk_name.startswith(prefix)]
