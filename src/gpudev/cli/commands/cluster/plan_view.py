"""`avail --plan`: the chart, and the user's planned starts with reasons."""

import sys

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.commands.cluster.plan_chart import ASCII, BLOCKS, ChartSigns, PlanChart
from gpudev.sdk.errors import NotFound
from gpudev.sdk.http.queue_endpoints import get_plan
from gpudev.wire.queue import ClusterPlan, PlannedStart, TypePlan

_INDENT = 4
_PIPED_COLUMNS = 80


def show_plan(session: CommandSession, hours: float, gpu_type: str | None, *, every_node: bool, as_json: bool) -> None:
    try:
        reply = session.api.fetch(get_plan(hours, gpu_type))
    except NotFound as error:
        step = "`gpu-dev avail` shows what is free now"
        raise NotFound("this server has an earlier version without a plan", step) from error
    if as_json:
        output.write_json(reply.raw)
        return
    plan = reply.value
    if not any(one.nodes or one.waiting_in_all for one in plan.gpu_types):
        output.write_line(f"No {output.clean(gpu_type)} nodes." if gpu_type else "No nodes.")
        return
    signs = _choose_signs()
    width = output.terminal_columns() if sys.stdout.isatty() else _PIPED_COLUMNS
    for line in [*PlanChart(width, signs, every_node).lines(plan), "", signs.legend]:
        shown = output.indent_below_label("", output.clean(line).rstrip(), _INDENT)
        output.write_line(shown.replace(signs.mine, output.paint(signs.mine, "green")))
    for one in plan.gpu_types:
        _show_own_starts(one, plan)


def _choose_signs() -> ChartSigns:
    """Block characters if the terminal can show them, else ASCII."""
    if not output.stdout_is_terminal():
        return ASCII
    try:
        "".join(BLOCKS).encode(sys.stdout.encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def _show_own_starts(one: TypePlan, plan: ClusterPlan) -> None:
    own = [start for start in one.waiting if start.mine]
    for start in own:
        label = f"you, position {start.position}: "
        output.write_line(
            output.indent_below_label(label, output.clean(_describe_start(start, one.gpu_type, plan)), _INDENT)
        )
    if not own and one.waiting_in_all > len(one.waiting):
        queued = f"{one.waiting_in_all:,} requests are queued for {output.clean(one.gpu_type)}"
        text = f"{queued}; the plan shows only the first {len(one.waiting):,}. `gpu-dev list` shows yours."
        output.write_line(output.indent_below_label("", text, _INDENT))


def _describe_start(start: PlannedStart, gpu_type: str, plan: ClusterPlan) -> str:
    what = formatting.format_amount(start.gpu_count, gpu_type, start.node_count)
    short = f" ({formatting.short_id(start.reservation_id)})" if start.reservation_id else ""
    when = [
        f"expected {formatting.in_about(start.expected, plan.begins)}" if start.expected else "",
        formatting.guaranteed_start(start.latest, plan.begins) if start.latest else "start not known yet",
    ]
    why = f"; {start.reason}" if start.reason else ""
    return f"{what}{short}, {', '.join(part for part in when if part)}{why}"
