"""`gpu-dev avail`."""

import json

import click

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.exit_codes import CliError, ExitCode, usage_error
from gpudev.cli.options import DURATION, GPU_TYPE, api_options
from gpudev.sdk.http.cluster_endpoints import list_availability
from gpudev.sdk.http.endpoints import ApiReply
from gpudev.wire.cluster import AvailabilityList, GpuAvailability

_HEADER = ("TYPE", "FREE", "TOTAL", "MOST NOW", "WAITING", "EXPECTED", "LATEST", "WHAT")
_DEFAULT_HOURS = 12.0
_MOST_CLOSED = 5


@click.command()
@click.option("--plan", "with_plan", is_flag=True, help="Show the plan of each node, and your planned starts.")
@click.option("--hours", type=DURATION, help="Length of the plan, e.g. 24h.  [default: 12h]")
@click.option("--type", "--gpu-type", "-t", "gpu_type", type=GPU_TYPE, help="Only this GPU type.")
@click.option("--all", "every", is_flag=True, help="Include types without nodes; with --plan, show every node.")
@api_options
def avail(
    *,
    with_plan: bool,
    hours: float | None,
    gpu_type: str | None,
    every: bool,
    as_json: bool,
    api_url: str | None,
) -> None:
    """Show free GPUs, and the wait for the others.

    EXPECTED and LATEST are the wait for one GPU requested now: EXPECTED from past usage, LATEST if nobody leaves
    early.
    """
    if hours is not None and not with_plan:
        raise usage_error("--hours requires --plan")
    session = CommandSession(api_url)
    if with_plan:
        from gpudev.cli.commands.cluster.plan_chart import show_plan

        show_plan(session, hours if hours is not None else _DEFAULT_HOURS, gpu_type, every_node=every, as_json=as_json)
        return
    reply = session.api.fetch(list_availability())
    types = _select_types(reply.value, gpu_type)
    if as_json:
        output.write_json(reply.raw if gpu_type is None else _keep_type_in_json(reply, gpu_type))
        return
    _show([one for one in types if every or gpu_type or one.total_cluster_gpus or one.running_instances])


def _select_types(found: AvailabilityList, gpu_type: str | None) -> list[GpuAvailability]:
    types = [one for one in found.gpu_types if gpu_type in (None, one.gpu_type)]
    if gpu_type is not None and not types:
        known = ", ".join(one.gpu_type for one in found.gpu_types)
        step = f"Available types: {output.clean(known)}" if known else ""
        raise CliError(ExitCode.NOT_FOUND, f"no GPU type {gpu_type!r}", step)
    return types


def _keep_type_in_json(reply: ApiReply[AvailabilityList], gpu_type: str) -> bytes:
    """The API's response without the other types."""
    types = json.loads(reply.raw)["gpu_types"]
    return json.dumps({"gpu_types": [one for one in types if one["gpu_type"] == gpu_type]}).encode()


def _show(types: list[GpuAvailability]) -> None:
    if not types:
        output.write_line("No GPU type has nodes right now; `gpu-dev avail --all` shows all types.")
        return
    rows = [_row(one) for one in types]
    output.write_line(output.table(_HEADER, rows, ["green" if one.available_gpus else "yellow" for one in types]))
    for one in types:
        if one.wait_reason:
            output.write_line(
                output.indent_below_label(f"{output.clean(one.gpu_type)}: ", output.clean(one.wait_reason), 4)
            )
        _show_closed(one)
    if any(one.max_per_node == 0 for one in types):
        output.write_line("CPU types count slots; reserve one with `--gpus 0`.")


def _show_closed(one: GpuAvailability) -> None:
    for node in one.closed_nodes[:_MOST_CLOSED]:
        why = f": {output.clean(node.reason)}" if node.reason else ""
        text = f"node {output.clean(node.name)} is closed for new work{why}"
        output.write_line(output.indent_below_label(f"{output.clean(one.gpu_type)}: ", text, 4))
    if (more := len(one.closed_nodes) - _MOST_CLOSED) > 0:
        output.write_line(f"{output.clean(one.gpu_type)}: {more} more nodes are closed for new work")


def _row(one: GpuAvailability) -> tuple[str, ...]:
    what = one.description or one.instance_type
    simulated = " (simulated)" if one.simulated and "simulated" not in what.lower() else ""
    return (
        one.gpu_type,
        str(one.available_gpus),
        str(one.total_cluster_gpus),
        str(one.max_reservable),
        str(one.queue_length),
        _format_wait(one.estimated_wait_minutes),
        # An earlier server version sends only the expected wait.
        "-" if one.latest_wait_minutes is None else _format_wait(one.latest_wait_minutes),
        f"{what}{simulated}",
    )


def _format_wait(minutes: int | None) -> str:
    if minutes is None:
        return "unknown"
    return "none" if minutes == 0 else formatting.format_duration(minutes * 60)
