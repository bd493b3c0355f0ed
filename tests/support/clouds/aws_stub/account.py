"""What one AWS account has in one region, and the rules by which it changes. It knows nothing of HTTP and XML."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

OWNER_ID = "123456789012"
OTHER_OWNER_ID = "999999999999"
_COPIED_FROM = "vol-ffffffff"
"""What EC2 tells as the volume of a snapshot that is a copy of another."""


class Refused(Exception):
    """The service answers with an error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


@dataclass(slots=True)
class Attachment:
    instance_id: str
    state: str = "attached"


@dataclass(slots=True)
class Volume:
    volume_id: str
    size_gb: int
    created_at: datetime
    zone: str
    tags: dict[str, str] = field(default_factory=dict)
    attachments: list[Attachment] = field(default_factory=list)
    state: str = "available"
    snapshot_id: str = ""
    unseen: int = 0
    """So many answers about it still go as if it were not there."""


@dataclass(slots=True)
class Snapshot:
    snapshot_id: str
    volume_id: str
    size_gb: int
    created_at: datetime
    tags: dict[str, str] = field(default_factory=dict)
    state: str = "completed"
    owner_id: str = OWNER_ID
    unseen: int = 0


@dataclass(slots=True)
class Modification:
    volume_id: str
    original_size: int
    target_size: int
    started_at: datetime
    state: str = "modifying"
    """modifying, then optimizing (the size is the new one), then completed."""


@dataclass(slots=True)
class Refreshed:
    refresh_id: str
    preferences: dict[str, str]
    status: str = "Pending"
    percent: int | None = None
    reason: str = ""


@dataclass(slots=True)
class Group:
    name: str
    desired: int
    instances: list[str]
    """The life-cycle state of each."""
    ids: list[str]
    refreshes: list[Refreshed] = field(default_factory=list)
    """The newest first."""


@dataclass(frozen=True, slots=True)
class Creation:
    """What a client token stood for the first time."""

    volume_id: str
    parameters: tuple[object, ...]


_Thing = TypeVar("_Thing", Volume, Snapshot)


class Account:
    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.now = now
        self.zones = ("us-east-2a", "us-east-2b", "us-east-2c")
        self.volumes: dict[str, Volume] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.groups: dict[str, Group] = {}
        self.modifications: dict[str, Modification] = {}
        self.creations: dict[str, Creation] = {}
        self.hide_new_for = 0
        """Eventual consistency: what is made from now on is missing from so many answers about it."""
        self.grows_at_once = True
        self._numbers = itertools.count(1)

    # --- past the API, by the test's hand --------------------------------------------------------------------------

    def give_volume(
        self, tags: Mapping[str, str], *, created_at: datetime | None = None, size_gb: int = 10, zone: str | None = None
    ) -> Volume:
        # Ids go the other way than times do, so that who sorts by the one does not seem to sort by the other.
        volume_id = f"vol-{(1 << 68) - next(self._numbers):017x}"
        volume = Volume(volume_id, size_gb, created_at or self.now(), zone or self.zones[0], dict(tags))
        self.volumes[volume_id] = volume
        return volume

    def give_snapshot(
        self,
        volume_id: str,
        tags: Mapping[str, str],
        *,
        created_at: datetime | None = None,
        size_gb: int = 10,
        state: str = "completed",
        owner_id: str = OWNER_ID,
    ) -> Snapshot:
        snapshot_id = f"snap-{(1 << 68) - next(self._numbers):017x}"
        made = Snapshot(snapshot_id, volume_id, size_gb, created_at or self.now(), dict(tags), state, owner_id)
        self.snapshots[snapshot_id] = made
        return made

    def copy_snapshot(self, snapshot_id: str) -> Snapshot:
        """As a scanner or a backup program does it: with all tags, and with no volume."""
        original = self.snapshots[snapshot_id]
        return self.give_snapshot(_COPIED_FROM, original.tags, size_gb=original.size_gb)

    def give_group(self, name: str, *, desired: int, in_service: int, starting: int = 0) -> None:
        states = ["InService"] * in_service + ["Pending"] * starting
        self.groups[name] = Group(name, desired, states, [f"i-{next(self._numbers):017x}" for _ in states])

    def attach(self, volume_id: str, instance_id: str | None = None) -> str:
        instance_id = instance_id or f"i-{next(self._numbers):017x}"
        volume = self.volumes[volume_id]
        volume.attachments.append(Attachment(instance_id))
        volume.state = "in-use"
        return instance_id

    def detach(self, volume_id: str) -> None:
        volume = self.volumes[volume_id]
        volume.attachments.clear()
        volume.state = "available"

    def fill(self, volumes: int, snapshots: int, *, since: datetime) -> None:
        """Many, each with the tags that disks have; snapshots are spread over the volumes."""
        ids = []
        for number in range(volumes):
            tags = {
                "gpu-dev-user": f"user{number % 500}",
                "disk-name": f"disk-{number}",
                "gpu-dev-disk-id": f"00000000-0000-4000-8000-{number:012x}",
                "Name": f"gpu-dev-disk-{number}",
            }
            made = self.give_volume(tags, created_at=since + timedelta(minutes=number), size_gb=100 + number % 900)
            if number % 10 == 0:
                self.attach(made.volume_id)
            ids.append(made.volume_id)
        for number in range(snapshots):
            tags = {
                "gpu-dev-user": f"user{number % volumes % 500}",
                "disk-name": f"disk-{number % volumes}",
                "gpu-dev-snapshot-id": f"00000000-0000-4000-8000-{number:012x}",
            }
            self.give_snapshot(ids[number % volumes], tags, created_at=since + timedelta(minutes=number), size_gb=100)

    # --- what the API does -----------------------------------------------------------------------------------------

    def seen(self, thing: _Thing) -> bool:
        """Whether an answer about it may know of it already."""
        if thing.unseen:
            thing.unseen -= 1
            return False
        return True

    def get_volume(self, volume_id: str) -> Volume:
        if not volume_id.startswith("vol-"):
            raise Refused("InvalidVolumeID.Malformed", f"Invalid id: '{volume_id}' (expecting 'vol-...')")
        volume = self.volumes.get(volume_id)
        if volume is None or not self.seen(volume):
            raise Refused("InvalidVolume.NotFound", f"The volume '{volume_id}' does not exist.")
        return volume

    def get_snapshot(self, snapshot_id: str) -> Snapshot:
        if not snapshot_id.startswith("snap-"):
            raise Refused("InvalidSnapshotID.Malformed", f"Invalid id: '{snapshot_id}' (expecting 'snap-...')")
        snapshot = self.snapshots.get(snapshot_id)
        if snapshot is None or not self.seen(snapshot):
            raise Refused("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id}' does not exist.")
        return snapshot

    def get_group(self, name: str) -> Group:
        if name not in self.groups:
            raise Refused("ValidationError", "AutoScalingGroup name not found - AutoScalingGroup not found")
        return self.groups[name]

    def start_refresh(self, name: str, preferences: dict[str, str]) -> Refreshed:
        group = self.get_group(name)
        if group.refreshes and group.refreshes[0].status in ("Pending", "InProgress", "Cancelling"):
            raise Refused("InstanceRefreshInProgress", "An Instance Refresh is already in progress and blocks this")
        group.refreshes.insert(0, Refreshed(f"refresh-{next(self._numbers)}", preferences))
        return group.refreshes[0]

    def create_volume(
        self, *, zone: str, size_gb: int | None, snapshot_id: str, tags: dict[str, str], client_token: str
    ) -> Volume:
        parameters = (zone, size_gb, snapshot_id, tuple(sorted(tags.items())))
        if (before := self.creations.get(client_token)) is not None:
            if before.parameters != parameters:
                raise Refused("IdempotentParameterMismatch", "The client token was used with other parameters.")
            return self.volumes[before.volume_id]
        if zone not in self.zones:
            raise Refused("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
        volume = self.give_volume(tags, size_gb=self._size_of_new(size_gb, snapshot_id), zone=zone)
        volume.snapshot_id = snapshot_id
        volume.unseen = self.hide_new_for
        if client_token:
            self.creations[client_token] = Creation(volume.volume_id, parameters)
        return volume

    def _size_of_new(self, size_gb: int | None, snapshot_id: str) -> int:
        if not snapshot_id:
            if size_gb is None:
                raise Refused("MissingParameter", "The request must contain the parameter size/snapshot")
            return size_gb
        snapshot = self.get_snapshot(snapshot_id)
        if snapshot.state != "completed":
            raise Refused("IncorrectState", f"Snapshot '{snapshot_id}' is not 'completed'.")
        if size_gb is not None and size_gb < snapshot.size_gb:
            raise Refused("InvalidParameterValue", "The volume size must be at least the snapshot's.")
        return size_gb or snapshot.size_gb

    def create_snapshot(self, volume_id: str, tags: dict[str, str]) -> Snapshot:
        """Two requests make two of them: EC2 knows no client token here."""
        volume = self.get_volume(volume_id)
        snapshot = self.give_snapshot(volume_id, tags, size_gb=volume.size_gb, state="pending")
        snapshot.unseen = self.hide_new_for
        return snapshot

    def modify_volume(self, volume_id: str, size_gb: int) -> Modification:
        volume = self.get_volume(volume_id)
        before = self.modifications.get(volume_id)
        if before is not None and before.state in ("modifying", "optimizing"):
            raise Refused("IncorrectModificationState", f"Volume {volume_id} is being modified.")
        if before is not None and self.now() - before.started_at < timedelta(hours=6):
            raise Refused("VolumeModificationRateExceeded", "You've reached the maximum modification rate.")
        if size_gb < volume.size_gb:
            raise Refused("InvalidParameterValue", "New size cannot be smaller than existing size")
        modification = Modification(volume_id, volume.size_gb, size_gb, self.now())
        self.modifications[volume_id] = modification
        if self.grows_at_once:
            self.let_grow(volume_id)
        return modification

    def let_grow(self, volume_id: str) -> None:
        modification = self.modifications[volume_id]
        self.volumes[volume_id].size_gb = modification.target_size
        modification.state = "optimizing"

    def delete_volume(self, volume_id: str) -> None:
        volume = self.get_volume(volume_id)
        if volume.attachments:
            raise Refused("VolumeInUse", f"Volume {volume_id} is currently attached.")
        self.destroy_volume(volume_id)

    def destroy_volume(self, volume_id: str) -> None:
        del self.volumes[volume_id]
        # What a token gives whose volume is gone is written down nowhere: here, a new one.
        self.creations = {token: made for token, made in self.creations.items() if made.volume_id != volume_id}

    def delete_snapshot(self, snapshot_id: str) -> None:
        self.get_snapshot(snapshot_id)
        del self.snapshots[snapshot_id]

    def tag(self, resource_id: str, tags: Mapping[str, str]) -> None:
        thing = self.get_snapshot(resource_id) if resource_id.startswith("snap-") else self.get_volume(resource_id)
        thing.tags.update(tags)
