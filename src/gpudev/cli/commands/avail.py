"""`gpu-dev avail`."""

import click

from gpudev.cli import output, wording
from gpudev.cli.options import api_options
from gpudev.cli.session import Session
from gpudev.wire.cluster import AvailabilityList, GpuAvailability

_HEADER = ("TYPE", "FREE", "TOTAL", "MOST AT ONCE", "WAITING", "WAIT", "WHAT")


@click.command()
@click.option("--all", "every", is_flag=True, help="Types that have no nodes, too.")
@api_options
def avail(every: bool, as_json: bool, api_url: str | None) -> None:
    """Show which GPUs are free, and how long one would wait for those that are not."""
    reply = Session(api_url).api.read(AvailabilityList, "/v1/gpu/availability")
    if as_json:
        output.say_json(reply.raw)
        return
    types = [one for one in reply.value.gpu_types if every or one.total_cluster_gpus or one.running_instances]
    if not types:
        output.say("No GPU type has nodes right now; `gpu-dev avail --all` shows those that are known.")
        return
    rows = [_row(one) for one in types]
    output.say(output.table(_HEADER, rows, ["green" if one.available_gpus else "yellow" for one in types]))
    if any(one.max_per_node == 0 for one in types):
        output.say("CPU types count user slots; reserve one with `--gpus 0`.")


def _row(one: GpuAvailability) -> tuple[str, ...]:
    what = one.description or one.instance_type
    simulated = " (simulated)" if one.simulated and "simulated" not in what.lower() else ""
    return (
        one.gpu_type,
        str(one.available_gpus),
        str(one.total_cluster_gpus),
        str(one.max_reservable),
        str(one.queue_length),
        _wait(one.estimated_wait_minutes),
        f"{what}{simulated}",
    )


def _wait(minutes: int | None) -> str:
    if minutes is None:
        return "not known"
    return "none" if minutes == 0 else wording.span(minutes * 60)
