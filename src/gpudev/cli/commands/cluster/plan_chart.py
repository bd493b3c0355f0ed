"""`avail --plan`: the plan as a chart, with a row per node, a column per time slot and a sign for its usage; and the
user's planned starts with reasons.

`PlanChart` is pure: it turns a plan and a width into lines.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gpudev.cli import formatting, output
from gpudev.cli.command_session import CommandSession
from gpudev.cli.prompts import is_cpu_type
from gpudev.sdk.errors import NotFound
from gpudev.sdk.http.cluster_endpoints import get_plan
from gpudev.wire.queue import ClusterPlan, PlannedStart, PlanNode, PlanStep, TypePlan

# Time slots of the columns, and the ruler above them. Slots begin at round local times.


_SLOT_MINUTES = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440)
_LABEL_MINUTES = (5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440)
_MINUTE = timedelta(minutes=1)
_LABEL_COLUMNS = 7
"""Width of '|14:00' with a gap."""


@dataclass(frozen=True, slots=True)
class TimeSlots:
    first: datetime
    """At or before the plan's begin: the first slot may have begun already."""
    length: timedelta
    count: int

    def column_of(self, moment: datetime) -> int | None:
        """None: outside the chart."""
        index = (moment - self.first) // self.length
        return index if 0 <= index < self.count else None


def choose_slots(begins: datetime, until: datetime, columns: int) -> TimeSlots:
    """The shortest slots that fit into `columns`."""
    for minutes in _SLOT_MINUTES:
        slots = _slots_of_length(begins, until, minutes)
        if slots.count <= columns:
            return slots
    return _slots_of_length(begins, until, _SLOT_MINUTES[-1] * 7)


def _slots_of_length(begins: datetime, until: datetime, minutes: int) -> TimeSlots:
    length = timedelta(minutes=minutes)
    local = begins.astimezone()
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    first = local - (local - midnight) % length
    return TimeSlots(first, length, max(1, -((first - until) // length)))


def peak_use(steps: Sequence[PlanStep], slots: TimeSlots) -> list[int]:
    """The peak usage within each slot, so that a slot shown as free is free throughout."""
    found = []
    at, used = 0, 0
    for column in range(slots.count):
        ends = slots.first + slots.length * (column + 1)
        begins = ends - slots.length
        peak = used
        while at < len(steps) and steps[at].at < ends:
            used = steps[at].used_gpus
            # A step at the slot's begin replaces the previous value; a later one counts towards the peak.
            peak = used if steps[at].at <= begins else max(peak, used)
            at += 1
        found.append(peak)
    return found


def format_ruler(slots: TimeSlots) -> str:
    """'|14:00  |15:00', each mark above the column where that time begins; midnight shows the weekday."""
    step = next((m for m in _LABEL_MINUTES if timedelta(minutes=m) >= slots.length * _LABEL_COLUMNS), 1440)
    line, before = "", None
    for column in range(slots.count):
        local = (slots.first + slots.length * column).astimezone()
        minutes = local.hour * 60 + local.minute
        interval = (local.date(), minutes // step)
        # After a clock change, columns may begin at odd times, and none at a round one.
        is_odd = minutes % (slots.length // _MINUTE) > 0
        is_mark = minutes % step == 0 or (is_odd and before not in (None, interval))
        before = interval
        if not is_mark:
            continue
        label = f"|{local:%a}" if minutes < step else f"|{local:%H:%M}"
        if column + len(label) <= slots.count and (not line or column > len(line)):
            line = line.ljust(column) + label
    return line


_FEW_NODES = 40
_SHOWN_OF_MANY = 8
_WIDEST_NAME = 24
_CLOSED = "closed"


class ChartSigns(NamedTuple):
    free: str
    partly: str
    """From nearly free to nearly full."""
    full: str
    closed: str
    mine: str
    legend: str


BLOCKS = ChartSigns("·", "▁▂▃▄▅▆▇", "█", "×", "▶", "· free  ▁▄▇ partly in use  █ full  × closed  ▶ your start")
ASCII = ChartSigns(
    ".", "", "#", "x", ">", ". free  1-9 GPUs in use (of more than 9: tenths)  # full  x closed  > your start"
)


class _Row(NamedTuple):
    label: str
    node: PlanNode
    mine: Sequence[PlannedStart] = ()


@dataclass(frozen=True, slots=True)
class PlanChart:
    width: int
    signs: ChartSigns
    every_node: bool

    def lines(self, plan: ClusterPlan) -> list[str]:
        many = sum(len(one.nodes) for one in plan.gpu_types) > _FEW_NODES and not self.every_node
        groups = [(one, self._shown(one) if many else one.nodes) for one in plan.gpu_types]
        labels = _labels([node.name for _, nodes in groups for node in nodes], self.width)
        content = [each for one, nodes in groups for each in self._group(one, nodes, labels)]
        rows = [each for each in content if isinstance(each, _Row)]
        names = max((len(row.label) for row in rows), default=0)
        loads = max((len(_format_load(row.node)) for row in rows), default=0)
        beside = 2 + names + 2 + loads + 2
        slots = choose_slots(plan.begins, plan.until, max(1, self.width - beside))
        lines = [f"{slots.first:%Z}".ljust(beside) + format_ruler(slots)]
        for each in content:
            if isinstance(each, _Row):
                lines.append(f"  {each.label:<{names}}  {_format_load(each.node):>{loads}}  {self._bar(each, slots)}")
            else:
                lines.append(each)
        return lines

    def _group(self, one: TypePlan, nodes: Sequence[PlanNode], labels: Mapping[str, str]) -> Iterator[_Row | str]:
        """One type: totals, the nodes shown, and a line for the others."""
        left_out = len(one.nodes) - len(nodes)
        yield self._heading(one)
        if left_out:
            yield _Row(f"{sum(1 for node in one.nodes if node.offers):,} open", _combine_nodes(one))
        for node in nodes:
            yield _Row(labels[node.name], node, _own_starts_on(node, one))
        if left_out:
            yield f"  and {left_out:,} more nodes; --all shows them"

    def _shown(self, one: TypePlan) -> list[PlanNode]:
        """Of many nodes: those with the user's own starts, then the first."""
        if len(one.nodes) <= _SHOWN_OF_MANY:
            return one.nodes
        by_interest = sorted(one.nodes, key=lambda node: not _own_starts_on(node, one))
        chosen = {node.name for node in by_interest[:_SHOWN_OF_MANY]}
        return [node for node in one.nodes if node.name in chosen]

    def _heading(self, one: TypePlan) -> str:
        unit = "slots" if is_cpu_type(one.gpu_type) else "GPUs"
        open_nodes = _combine_nodes(one)
        closed = sum(1 for node in one.nodes if not node.offers)
        free = f"{open_nodes.total_gpus - _used_now(open_nodes):,} of {open_nodes.total_gpus:,} {unit} free now"
        parts = [
            free if one.nodes else "no nodes",
            f"{closed:,} of {len(one.nodes):,} nodes closed" if closed else "",
            f"{one.waiting_in_all:,} queued" if one.waiting_in_all else "",
        ]
        return f"{one.gpu_type}: {', '.join(part for part in parts if part)}"

    def _bar(self, row: _Row, slots: TimeSlots) -> str:
        cells = [self._sign(used, row.node) for used in peak_use(row.node.steps, slots)]
        for start in row.mine:
            column = slots.column_of(start.latest) if start.latest else None
            if column is not None:
                cells[column] = self.signs.mine
        return "".join(cells)

    def _sign(self, used: int, node: PlanNode) -> str:
        if used <= 0:
            return self.signs.free if node.offers else self.signs.closed
        if used >= node.total_gpus:
            return self.signs.full
        steps = self.signs.partly
        if steps:
            level = round(used * (len(steps) + 1) / node.total_gpus)
            return steps[min(len(steps), max(1, level)) - 1]
        return str(used) if node.total_gpus <= 9 else str(max(1, used * 10 // node.total_gpus))


def _combine_nodes(one: TypePlan) -> PlanNode:
    """All open nodes as one."""
    open_nodes = [node for node in one.nodes if node.offers]
    changes = []
    for node in open_nodes:
        before = 0
        for step in node.steps:
            changes.append((step.at, step.used_gpus - before))
            before = step.used_gpus
    steps: list[PlanStep] = []
    used = 0
    for at, change in sorted(changes):
        used += change
        if steps and steps[-1].at == at:
            steps.pop()
        steps.append(PlanStep(at=at, used_gpus=used))
    total = sum(node.total_gpus for node in open_nodes)
    return PlanNode(name=one.gpu_type, total_gpus=total, offers=True, steps=steps)


def _own_starts_on(node: PlanNode, one: TypePlan) -> list[PlannedStart]:
    return [start for start in one.waiting if start.mine and node.name in start.nodes]


def _used_now(node: PlanNode) -> int:
    return node.steps[0].used_gpus if node.steps else 0


def _format_load(node: PlanNode) -> str:
    return f"{_used_now(node)}/{node.total_gpus}" if node.offers else _CLOSED


def _labels(names: Sequence[str], width: int) -> dict[str, str]:
    """Node labels: without the domain if that is unambiguous, and shortened."""
    hosts = [name.partition(".")[0] for name in names]
    shown = hosts if len(set(hosts)) == len(set(names)) else names
    most = max(6, min(_WIDEST_NAME, width // 3))
    return {name: _shortened(label, most) for name, label in zip(names, shown, strict=True)}


def _shortened(label: str, most: int) -> str:
    """Cut in the middle: machine names differ at their ends."""
    if len(label) <= most:
        return label
    head = (most - 2) // 2
    return f"{label[:head]}..{label[len(label) - (most - 2 - head) :]}"


# The output of `avail --plan`.

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
