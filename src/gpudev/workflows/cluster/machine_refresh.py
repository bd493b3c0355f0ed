"""Machine refresh: cordon a node group, wait until it is empty, then replace its machines.

It can be interrupted anywhere and resumed: cordons stay until the new machines are there, and a refresh under way is
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
"""The control plane's machines go one after the other: its database has two."""
WARMUP_SECONDS = 300


@dataclass(frozen=True, slots=True)
class NodeGroupRefresh:
    prefix: str
    groups: NodeGroups
    machines: ClusterMachines
    cordons: CordonStore
    node_drain: NodeDrain

    def full_group_name(self, group: str) -> str:
        """`t4` and `cpu` stand for the groups that infra/ calls so."""
        if group.startswith(f"{self.prefix}-"):
            return group
        return f"{self.prefix}-cpu-nodes" if group == "cpu" else f"{self.prefix}-gpu-nodes-{group}"

    async def nodes_of(self, group: str) -> list[str]:
        """NotFound: there is no such group. Machines that have not joined the cluster have no node."""
        machines = set(await self.groups.machines(group))
        return sorted(one.node for one in await self.machines.nodes() if one.machine in machines)

    async def close_group(
        self, group: str, by: str, reason: str, then: DescribeConsequence
    ) -> tuple[list[str], list[Reservation]]:
        """The nodes that are closed now, and whoever is there: they have been told. Nodes that no dev server was ever
        on (the control plane's) are not closed: nothing of ours would start there."""
        check_cordon_reason(text := _reason(group, reason))
        closed: list[str] = []
        there: dict[object, Reservation] = {}
        for node in await self.nodes_of(group):
            try:
                for one in await self.node_drain.drain(node, by, text, then):
                    there[one.reservation_id] = one
            except NotFound:
                continue
            closed.append(node)
        return closed, list(there.values())

    async def are_cordons_in_effect(self, closed: Sequence[str]) -> bool:
        """Whether the processor gives nobody a place on these any more. Before that, empty means nothing."""
        return await self.cordons.has_taken_effect(closed)

    async def reservations_on(self, closed: Sequence[str]) -> list[Reservation]:
        found: dict[object, Reservation] = {}
        for node in closed:
            for one in await self.node_drain.reservations_on(node):
                found[one.reservation_id] = one
        return list(found.values())

    async def find_running_refresh(self, group: str) -> MachineRefresh | None:
        last = await self.groups.last_refresh(group)
        return last if last is not None and last.state is RefreshState.RUNNING else None

    async def begin_refresh(self, group: str, closed: Sequence[str]) -> MachineRefresh:
        """Conflict while anybody is there."""
        if there := await self.reservations_on(closed):
            raise Conflict(f"{len(there)} reservations are still on machines of {group}")
        is_management = group == f"{self.prefix}-cpu-nodes"
        return await self.groups.ensure_refresh(
            group, keep_percent=MANAGEMENT_KEEP_PERCENT if is_management else 0, warmup_seconds=WARMUP_SECONDS
        )

    async def find_last_refresh(self, group: str) -> MachineRefresh | None:
        return await self.groups.last_refresh(group)

    async def finish_refresh(self, group: str) -> list[str]:
        """Takes back what `close` did: a new machine may bear an old one's name."""
        text = _reason(group)
        cordons = (await self.cordons.cordons()).values()
        ours = [one.node for one in cordons if one.reason == text or one.reason.startswith(f"{text}: ")]
        for node in ours:
            await self.cordons.uncordon(node)
        return sorted(ours)


def _reason(group: str, more: str = "") -> str:
    return f"new machines for {group}{f': {more}' if more else ''}"
