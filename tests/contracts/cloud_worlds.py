"""The worlds that the contracts of clouds are tried in: an adapter, and a hand that reaches past it.

An adapter's tests derive from those whose contracts (`cloud_contract`) it keeps.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import uuid4

from gpudev.ports.cloud import OWNER_TAG, RECORDED_TAG, Cloud, CloudView, Snapshot, SnapshotState, Volume

LONG_AGO = datetime(2026, 1, 26, 12, 0, tzinfo=UTC)


def ours(owner: str = "ada", name: str = "default", **more: str) -> dict[str, str]:
    """A disk's tags. Keys and values keep within what GCP allows of labels."""
    return {OWNER_TAG: owner, "disk-name": name, **more}


class CloudViewWorld(ABC):
    """A cloud that is empty at first, and a hand that puts things into it past the adapter."""

    cloud: CloudView
    """Started."""

    @abstractmethod
    async def give_volume(self, *, tags: Mapping[str, str], created_at: datetime = LONG_AGO, size_gb: int = 10) -> str:
        """Its id, as the adapter tells it."""

    @abstractmethod
    async def give_snapshot(
        self,
        volume_id: str,
        *,
        tags: Mapping[str, str],
        created_at: datetime = LONG_AGO,
        state: SnapshotState = SnapshotState.COMPLETED,
    ) -> str: ...

    @abstractmethod
    async def attach(self, volume_id: str) -> str:
        """Some machine takes it: its name, as the adapter tells it."""

    @abstractmethod
    async def destroy_volume(self, volume_id: str) -> None:
        """It is gone, by nobody's leave."""


class CloudWorld(CloudViewWorld):
    cloud: Cloud
    zone: str
    """Where volumes may be made."""
    sizes: tuple[int, int] = (10, 20)
    """Of a volume, and of one grown."""

    @abstractmethod
    async def complete(self, snapshot_id: str) -> None:
        """A snapshot that was begun is finished."""

    @abstractmethod
    async def detach(self, volume_id: str) -> None:
        """No machine has it any more."""

    async def new_volume(self, token: str | None = None, **tags: str) -> Volume:
        return await self.cloud.ensure_volume(
            token or str(uuid4()), size_gb=self.sizes[0], zone=self.zone, tags=ours() | tags
        )

    async def new_snapshot(self, volume_id: str) -> Snapshot:
        token = str(uuid4())
        return await self.cloud.ensure_snapshot(token, volume_id, ours() | {RECORDED_TAG: token})


class GroupsWorld(ABC):
    cloud: CloudView

    @abstractmethod
    async def give_group(self, name: str, *, desired: int, in_service: int, starting: int = 0) -> None:
        """`starting` machines of it are there and not in service."""


class Listing(StrEnum):
    GROUPS = "groups"
    VOLUMES = "volumes"
    SNAPSHOTS = "snapshots"


class FaultyWorld(CloudWorld, GroupsWorld):
    """One that can be made to misbehave. Its adapter should try a call only two or three times, so that tests of
    what lasts end soon."""

    cloud: Cloud

    @abstractmethod
    def pages_of(self, count: int) -> None:
        """No page of any listing has more than so many."""

    @abstractmethod
    def break_page(self, listing: Listing, page: int) -> None:
        """From now on this page (the first is 1) of the listing cannot be had, however often it is asked for."""

    @abstractmethod
    def cut_page(self, listing: Listing, page: int) -> None:
        """From now on this page's bytes end early, every time."""

    @abstractmethod
    def answer_nonsense(self) -> None:
        """From now on everything is answered with success and a page that some proxy made."""

    @abstractmethod
    def throttle(self, requests: int) -> None:
        """So many requests from now on are turned away for their number."""

    @abstractmethod
    def refuse(self, listing: Listing) -> str:
        """We may not read it. The name of the action, as an administrator would grant it."""

    @abstractmethod
    def be_unreachable(self) -> None:
        """Nobody listens at the cloud's address any more."""

    @abstractmethod
    def answers_lost(self) -> contextlib.AbstractContextManager[None]:
        """Inside, changes are carried out and the line breaks before they are answered; reading works."""

    @abstractmethod
    def requests_lost(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the line breaks before anything is done; reading works."""

    @abstractmethod
    def hide_the_new(self, requests: int) -> None:
        """What is made from now on is missing from the next so many answers about it."""

    async def told(self, listing: Listing) -> list[str]:
        match listing:
            case Listing.GROUPS:
                return [group.name for group in await self.cloud.node_groups("")]
            case Listing.VOLUMES:
                return [volume.volume_id for volume in await self.cloud.volumes()]
            case Listing.SNAPSHOTS:
                return [snapshot.snapshot_id for snapshot in await self.cloud.snapshots()]

    async def give_many(self, listing: Listing, count: int) -> list[str]:
        """So many, the oldest first; groups by name."""
        if listing is Listing.GROUPS:
            names = [f"group-{number:03}" for number in range(count)]
            for name in names:
                await self.give_group(name, desired=1, in_service=1)
            return names
        when = [LONG_AGO + timedelta(hours=number) for number in range(count)]
        if listing is Listing.VOLUMES:
            return [await self.give_volume(tags=ours(), created_at=moment) for moment in when]
        volume_id = await self.give_volume(tags=ours())
        return [await self.give_snapshot(volume_id, tags=ours(), created_at=moment) for moment in when]
