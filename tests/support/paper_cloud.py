"""A cloud on paper: groups, volumes and snapshots that exist as records only, with faults on demand."""

from datetime import UTC, datetime, timedelta

from gpudev.domain.errors import GpuDevError
from gpudev.ports.cloud import NodeGroup, Snapshot, SnapshotState, Volume

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class PaperCloud:
    name = "paper"

    def __init__(self) -> None:
        self.groups: list[NodeGroup] = []
        self.made: list[Volume] = []
        self.taken: list[Snapshot] = []
        self.refuse_groups: GpuDevError | None = None
        self.refuse_volumes: GpuDevError | None = None
        self.refuse_snapshots: GpuDevError | None = None
        self.asked: list[str] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def node_groups(self, prefix: str) -> list[NodeGroup]:
        self.asked.append("groups")
        if self.refuse_groups is not None:
            raise self.refuse_groups
        return sorted((one for one in self.groups if one.name.startswith(prefix)), key=lambda one: one.name)

    async def volumes(self) -> list[Volume]:
        self.asked.append("volumes")
        if self.refuse_volumes is not None:
            raise self.refuse_volumes
        return sorted(self.made, key=lambda one: one.created_at)

    async def snapshots(self) -> list[Snapshot]:
        self.asked.append("snapshots")
        if self.refuse_snapshots is not None:
            raise self.refuse_snapshots
        return sorted(self.taken, key=lambda one: one.created_at)

    def volume(
        self,
        volume_id: str,
        owner: str | None = "ada",
        disk: str | None = "work",
        *,
        size_gb: int = 100,
        attached: bool = False,
        day: int = 0,
        **tags: str,
    ) -> Volume:
        marks = {name: value for name, value in {"gpu-dev-user": owner, "disk-name": disk}.items() if value is not None}
        made = Volume(
            volume_id,
            size_gb,
            BEGINNING + timedelta(days=day),
            "zone-a",
            ("i-1",) if attached else (),
            {**marks, **{name.replace("_", "-") if name != "disk_name" else name: tags[name] for name in tags}},
        )
        self.made.append(made)
        return made

    def snapshot(
        self, snapshot_id: str, volume_id: str, *, day: int = 10, state: SnapshotState = SnapshotState.COMPLETED
    ) -> Snapshot:
        taken = Snapshot(snapshot_id, volume_id, state, BEGINNING + timedelta(days=day), 100, {"gpu-dev-user": "ada"})
        self.taken.append(taken)
        return taken
