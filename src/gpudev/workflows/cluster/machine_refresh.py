"""Machine refresh: cordon a node group, wait until it is empty, then replace its machines.

It can be interrupted anywhere and resumed: cordons stay until the new machines are there, and a running refresh is
found again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudev.domain.cluster import check_cordon_reason
from gpudev.domain.errors import Conflict, NotFound
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.cloud import MachineRefresh, NodeGroups, RefreshState
from gpudev.ports.cluster import ClusterMachines, CordonStore
from gpudev.workflows.cluster.drain import DescribeConsequence, NodeDrain

MANAGEMENT_KEEP_PERCENT = 50
"""The control plane's machines are replaced one by one: its database runs on two."""
WARMUP_SECONDS = 300


@dataclass(frozen=True, slots=True)
class NodeGroupRefresh:
    prefix: str
    groups: NodeGroups
    machines: ClusterMachines
    cordons: CordonStore
    node_drain: NodeDrain

    def full_group_name(self, group: str) -> str:
        """Expands short names such as `t4` and `cpu` to the group names of infra/."""
        if group.startswith(f"{self.prefix}-"):
            return group
        return f"{self.prefix}-cpu-nodes" if group == "cpu" else f"{self.prefix}-gpu-nodes-{group}"

    async def nodes_of(self, group: str) -> list[str]:
        """Raises NotFound for an unknown group. Machines that have not joined the cluster have no node."""
        machines = set(await self.groups.machines(group))
        return sorted(each.node for each in await self.machines.nodes() if each.machine in machines)

    async def close_group(
        self, group: str, by: str, reason: str, then: DescribeConsequence
    ) -> tuple[list[str], list[Reservation]]:
        """The closed nodes, and the reservations on them, which were notified. Nodes of the control plane are not
        closed: no dev server starts there."""
        check_cordon_reason(text := _reason(group, reason))
        closed: list[str] = []
        there: dict[object, Reservation] = {}
        for node in await self.nodes_of(group):
            try:
                for each in await self.node_drain.drain(node, by, text, then):
                    there[each.reservation_id] = each
            except NotFound:
                continue
            closed.append(node)
        return closed, list(there.values())

    async def are_cordons_in_effect(self, closed: Sequence[str]) -> bool:
        """Whether the processor no longer places reservations on these nodes. Before that, an empty node means
        nothing."""
        return await self.cordons.has_taken_effect(closed)

    async def reservations_on(self, closed: Sequence[str]) -> list[Reservation]:
        found: dict[object, Reservation] = {}
        for node in closed:
            for each in await self.node_drain.reservations_on(node):
                found[each.reservation_id] = each
        return list(found.values())

    async def find_running_refresh(self, group: str) -> MachineRefresh | None:
        last = await self.groups.last_refresh(group)
        return last if last is not None and last.state is RefreshState.RUNNING else None

    async def begin_refresh(self, group: str, closed: Sequence[str]) -> MachineRefresh:
        """Raises Conflict while reservations are on the nodes."""
        if there := await self.reservations_on(closed):
            raise Conflict(f"{len(there)} reservations are still on machines of {group}")
        is_management = group == f"{self.prefix}-cpu-nodes"
        return await self.groups.ensure_refresh(
            group, keep_percent=MANAGEMENT_KEEP_PERCENT if is_management else 0, warmup_seconds=WARMUP_SECONDS
        )

    async def find_last_refresh(self, group: str) -> MachineRefresh | None:
        return await self.groups.last_refresh(group)

    async def finish_refresh(self, group: str) -> list[str]:
        """Removes the cordons of `close_group`: a new machine may have an old one's name."""
        text = _reason(group)
        cordons = (await self.cordons.cordons()).values()
        ours = [each.node for each in cordons if each.reason == text or each.reason.startswith(f"{text}: ")]
        for node in ours:
            await self.cordons.uncordon(node)
        return sorted(ours)


def _reason(group: str, more: str = "") -> str:
    return f"new machines for {group}{f': {more}' if more else ''}"
