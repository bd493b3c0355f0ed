"""Availability pass: observe cluster and cloud once, write each GPU type's numbers.

An incomplete observation changes nothing: rows keep their values, and their age shows it. A type that cannot be written
does not stop the others.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gpudev.domain.cluster import Catalogue, apply_cordons
from gpudev.domain.errors import GpuDevError
from gpudev.planning.cluster.orphans import count_orphans_as_foreign
from gpudev.planning.cluster.reconcile_availability import (
    NodeGroupsByType,
    assign_groups,
    changed_columns,
    group_prefix,
    plan_availability,
    unmatched_warnings,
)
from gpudev.ports.clock import Clock
from gpudev.ports.cloud import CloudView
from gpudev.ports.cluster import AvailabilityRow, AvailabilityStore, ClusterObserver, CordonReader
from gpudev.ports.reservations import UnreleasedView


@dataclass(slots=True)
class AvailabilityReport:
    updated: dict[str, Mapping[str, tuple[int | None, int]]] = field(default_factory=dict)
    """By type: column → (old, new). Empty if only the time changed."""
    kept: list[str] = field(default_factory=list)
    """Types whose rows are newer (a running processor writes them too)."""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return not self.errors


@dataclass(frozen=True, slots=True)
class AvailabilityReconciliation:
    cluster: ClusterObserver
    cordons: CordonReader
    cloud: CloudView | None
    """None: no cloud, so only the nodes of the cluster count."""
    unreleased: UnreleasedView
    catalogue: Callable[[], Awaitable[Catalogue]]
    store: AvailabilityStore
    clock: Clock
    prefix: str
    by: str

    async def run(self, *, dry_run: bool = False) -> AvailabilityReport:
        report = AvailabilityReport()
        try:
            rows = await self._rows(report)
            before = {row.gpu_type: row for row in await self.store.availability()}
        except GpuDevError as error:
            report.errors.append(f"nothing was changed: {error}")
            return report
        for row in rows:
            try:
                await self._write(row, before.get(row.gpu_type), report, dry_run)
            except GpuDevError as error:
                report.errors.append(f"{row.gpu_type} was not updated: {error}")
        return report

    async def _rows(self, report: AvailabilityReport) -> list[AvailabilityRow]:
        # Taken before the first query: later changes may be missing from the result.
        at = self.clock.now()
        groups = await self._groups(report)
        state = await self.cluster.observe()
        unreleased = await self.unreleased.refresh()
        state = count_orphans_as_foreign(state, {row.reservation_id for row in unreleased if row.shares})
        offered = apply_cordons(state.nodes, await self.cordons.cordons())
        allocations = [held for row in unreleased if (held := row.allocation()) is not None]
        rows = []
        for gpu_type in (await self.catalogue()).values():
            nodes = [node for node in offered if node.gpu_type == gpu_type.name]
            numbers = plan_availability(gpu_type, nodes, allocations, groups, at=min(at, state.at), by=self.by)
            rows.append(numbers.row)
            report.warnings += numbers.warnings
        return rows

    async def _groups(self, report: AvailabilityReport) -> NodeGroupsByType | None:
        if self.cloud is None:
            return None
        found = await self.cloud.node_groups(group_prefix(self.prefix))
        groups = assign_groups(found, self.prefix, await self.store.type_names())
        report.warnings += unmatched_warnings(groups)
        return groups

    async def _write(
        self, row: AvailabilityRow, before: AvailabilityRow | None, report: AvailabilityReport, dry_run: bool
    ) -> None:
        known_at = before.updated_at if before else None
        is_older = known_at is not None and row.updated_at is not None and row.updated_at < known_at
        if is_older or not (dry_run or await self.store.write_if_newer(row)):
            report.kept.append(row.gpu_type)
        else:
            report.updated[row.gpu_type] = changed_columns(row, before)
