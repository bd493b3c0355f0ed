"""What is done to volumes and snapshots. Every act may be repeated, also by another process after a crash.

EC2 makes a volume once for each client token. For snapshots it has no such thing: one is looked for by its tag, asked
for with a request that is sent once, and looked for again when nobody knows what came of that. What was made a moment
ago may not be seen everywhere yet, so what this process made itself is remembered for a while.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from gpudev.adapters.aws.client import AwsClient
from gpudev.adapters.aws.errors import AwsRejected, AwsThrottled
from gpudev.adapters.aws.parsing import parse_snapshot, parse_volume
from gpudev.adapters.aws.permissions import Action
from gpudev.adapters.environment_tag import EnvironmentTag
from gpudev.domain.backoff import growing_pauses
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import TOKEN_TAG, Snapshot, Volume

_T = TypeVar("_T")
_Resource = TypeVar("_Resource", Volume, Snapshot)
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 3.0
_VOLUME_TYPE = "gp3"
_GROWING_STATES = frozenset({"modifying", "optimizing"})


class AwsVolumes:
    def __init__(self, client: AwsClient, environment_tag: EnvironmentTag) -> None:
        self._client = client
        self._environment_tag = environment_tag
        self._created = _RecentlyCreated(client.limits.settle_time.total_seconds())
        self._token_locks: dict[str, _TokenLock] = {}

    async def find_volume(self, volume_id: str) -> Volume | None:
        return await self._find_recently_created(volume_id, lambda: self._describe_volume(volume_id))

    async def ensure_volume(
        self, token: str, *, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None = None
    ) -> Volume:
        async with self._hold_token(token):
            found = await self._find_volume_by_token(token)
            return found or await self._create_volume(token, size_gb, zone, tags, from_snapshot)

    async def grow_volume(self, volume_id: str, size_gb: int) -> Volume:
        """As large as it is now: EC2 grows it meanwhile, and whoever asks again sees it."""
        volume = await self._get_volume(volume_id)
        if volume.size_gb >= size_gb or await self._is_growing(volume_id, size_gb):
            return volume
        with contextlib.suppress(_AlreadyGrowing):
            try:
                await self._client.call(Action.MODIFY_VOLUME, {"VolumeId": volume_id, "Size": size_gb})
            except AwsRejected as refusal:
                # A request whose answer was lost, sent again by the library: the first one is being carried out.
                if refusal.aws_code == "IncorrectModificationState" and await self._is_growing(volume_id, size_gb):
                    raise _AlreadyGrowing from refusal
                raise
        return await self._get_volume(volume_id)

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        wanted = {"Resources": [volume_id], "Tags": _to_aws_tags(self._environment_tag.add_to(tags))}
        await self._act_on_recently_created(volume_id, lambda: self._client.call(Action.CREATE_TAGS, wanted))

    async def is_detached(self, volume_id: str) -> bool:
        volume = await self.find_volume(volume_id)
        return volume is None or not volume.attached_to

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        return await self._find_recently_created(snapshot_id, lambda: self._describe_snapshot(snapshot_id))

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        async with self._hold_token(token):
            if (found := await self._find_snapshot_by_token(token, volume_id)) is not None:
                return found
            wanted = {"VolumeId": volume_id, "TagSpecifications": [self._tag_specification("snapshot", token, tags)]}
            try:
                told = await self._act_on_recently_created(volume_id, lambda: self._create_snapshot(wanted))
            except AwsThrottled:
                raise
            except Unavailable:
                # It may have been made. Asking again could make a second one.
                if (found := await self._await_snapshot(token, volume_id)) is not None:
                    return found
                raise
            snapshot = parse_snapshot(told)
            self._created.add(snapshot.snapshot_id, token=token)
            return snapshot

    async def remove_volume(self, volume_id: str) -> None:
        await self._remove(volume_id, Action.DELETE_VOLUME, {"VolumeId": volume_id})

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._remove(snapshot_id, Action.DELETE_SNAPSHOT, {"SnapshotId": snapshot_id})

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _describe_volume(self, volume_id: str) -> Volume | None:
        [told] = await self._describe_one(Action.DESCRIBE_VOLUMES, "Volumes", "VolumeIds", volume_id) or [None]
        return None if told is None else parse_volume(told)

    async def _describe_snapshot(self, snapshot_id: str) -> Snapshot | None:
        [told] = await self._describe_one(Action.DESCRIBE_SNAPSHOTS, "Snapshots", "SnapshotIds", snapshot_id) or [None]
        return None if told is None else parse_snapshot(told)

    async def _describe_one(self, action: Action, key: str, ids: str, thing_id: str) -> list[Any]:
        """One or none. Only a definite "not found" is none."""
        try:
            answer = await self._client.call(action, {ids: [thing_id]})
        except AwsRejected as refusal:
            if refusal.is_not_found:
                return []
            raise
        if len(answer.get(key, ())) != 1:
            raise Unavailable(f"what answered {action} for {thing_id} was not AWS")
        return list(answer[key])

    async def _get_volume(self, volume_id: str) -> Volume:
        volume = await self.find_volume(volume_id)
        if volume is None:
            raise ClusterError(f"there is no volume {volume_id}")
        return volume

    async def _find_volume_by_token(self, token: str) -> Volume | None:
        return await self._find_oldest(Action.DESCRIBE_VOLUMES, "Volumes", [_token_filter(token)], parse_volume)

    async def _find_snapshot_by_token(self, token: str, volume_id: str) -> Snapshot | None:
        """A copy that some program made of it carries its tags too, but never its volume."""
        if (made := self._created.find_by_token(token)) is not None:
            return await self.find_snapshot(made)
        filters = [_token_filter(token), {"Name": "volume-id", "Values": [volume_id]}]
        return await self._find_oldest(Action.DESCRIBE_SNAPSHOTS, "Snapshots", filters, parse_snapshot)

    async def _find_oldest(
        self,
        action: Action,
        key: str,
        filters: list[dict[str, Any]],
        read: Callable[[Mapping[str, Any]], _Resource | None],
    ) -> _Resource | None:
        """The oldest that there is."""
        own: dict[str, Any] = {"OwnerIds": ["self"]} if action is Action.DESCRIBE_SNAPSHOTS else {}
        found: list[_Resource] = []
        async for page in self._client.list_pages(action, key, {**own, "Filters": filters}):
            found += [thing for thing in map(read, page) if thing is not None]
        return min(found, key=lambda thing: thing.created_at, default=None)

    async def _await_snapshot(self, token: str, volume_id: str) -> Snapshot | None:
        async for _ in _backoff(self._client.limits.settle_time.total_seconds()):
            if (found := await self._find_snapshot_by_token(token, volume_id)) is not None:
                return found
        return None

    async def _is_growing(self, volume_id: str, size_gb: int) -> bool:
        filters = [{"Name": "volume-id", "Values": [volume_id]}]
        async for page in self._client.list_pages(
            Action.DESCRIBE_MODIFICATIONS, "VolumesModifications", {"Filters": filters}
        ):
            for told in page:
                if told["ModificationState"] in _GROWING_STATES and told.get("TargetSize", 0) >= size_gb:
                    return True
        return False

    # --- acting ----------------------------------------------------------------------------------------------------

    async def _create_volume(
        self, token: str, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None
    ) -> Volume:
        wanted: dict[str, Any] = {
            "ClientToken": token,
            "AvailabilityZone": zone,
            "Size": size_gb,
            "VolumeType": _VOLUME_TYPE,
            "Encrypted": True,
            "TagSpecifications": [self._tag_specification("volume", token, tags)],
        }
        if from_snapshot is not None:
            wanted["SnapshotId"] = from_snapshot
        told = await self._act_on_recently_created(
            from_snapshot, lambda: self._client.call(Action.CREATE_VOLUME, wanted)
        )
        if "VolumeId" not in told:
            raise Unavailable("what answered the creation of a volume was not AWS")
        volume = parse_volume(told)
        if volume is None:
            raise ClusterError(f"the volume {told['VolumeId']} of this creation was removed")
        self._created.add(volume.volume_id)
        return volume

    async def _create_snapshot(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        attempts = self._client.limits.attempts
        async for _ in _backoff(self._client.limits.deadline.total_seconds()):
            attempts -= 1
            try:
                told = await self._client.call(Action.CREATE_SNAPSHOT, wanted, once=True)
            except AwsThrottled:
                if attempts <= 0:
                    raise
                continue
            if "SnapshotId" not in told:
                raise Unavailable("what answered the creation of a snapshot was not AWS")
            return told
        raise AwsThrottled("AWS turned the creation of a snapshot away for too many requests")

    async def _remove(self, thing_id: str, action: Action, named: Mapping[str, str]) -> None:
        try:
            await self._act_on_recently_created(thing_id, lambda: self._client.call(action, named))
        except AwsRejected as refusal:
            if not refusal.is_not_found:
                raise
        self._created.forget(thing_id)

    async def _find_recently_created(self, thing_id: str, find: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """What we just made is not taken for gone while it cannot be seen yet."""
        found = await find()
        if found is not None or not self._created.is_recent(thing_id):
            return found
        async for _ in _backoff(self._created.seconds_left(thing_id)):
            if (found := await find()) is not None:
                return found
        return None

    async def _act_on_recently_created(self, thing_id: str | None, act: Callable[[], Awaitable[_T]]) -> _T:
        """The same for what is done to it."""
        async for _ in _backoff(self._created.seconds_left(thing_id)):
            try:
                return await act()
            except AwsRejected as refusal:
                if not refusal.is_not_found:
                    raise
        return await act()

    def _tag_specification(self, kind: str, token: str, tags: Mapping[str, str]) -> dict[str, Any]:
        return {"ResourceType": kind, "Tags": _to_aws_tags({**self._environment_tag.add_to(tags), TOKEN_TAG: token})}

    @contextlib.asynccontextmanager
    async def _hold_token(self, token: str) -> AsyncIterator[None]:
        """Two that ask for the same at once would both find nothing and both make it."""
        turns = self._token_locks.setdefault(token, _TokenLock())
        turns.users += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.users -= 1
            if turns.users == 0:
                del self._token_locks[token]


class _TokenLock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _AlreadyGrowing(Exception):
    """It is being grown already."""


class _RecentlyCreated:
    """The ids of what this process made a short while ago, and for which token."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expires_at: dict[str, float] = {}
        self._id_by_token: dict[str, str] = {}

    def add(self, thing_id: str, *, token: str | None = None) -> None:
        self._drop_old()
        self._expires_at[thing_id] = _now() + self._seconds
        if token is not None:
            self._id_by_token[token] = thing_id

    def find_by_token(self, token: str) -> str | None:
        self._drop_old()
        return self._id_by_token.get(token)

    def is_recent(self, thing_id: str) -> bool:
        return self.seconds_left(thing_id) > 0

    def seconds_left(self, thing_id: str | None) -> float:
        return max(0.0, self._expires_at.get(thing_id or "", 0.0) - _now())

    def forget(self, thing_id: str) -> None:
        self._expires_at.pop(thing_id, None)
        self._drop_old()

    def _drop_old(self) -> None:
        now = _now()
        self._expires_at = {thing_id: until for thing_id, until in self._expires_at.items() if until > now}
        self._id_by_token = {
            token: thing_id for token, thing_id in self._id_by_token.items() if thing_id in self._expires_at
        }


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _backoff(seconds: float) -> AsyncIterator[None]:
    """Turns, further and further apart, until the time is over: none when there is none."""
    end = _now() + seconds
    for pause in growing_pauses(_FIRST_WAIT_S, _LONGEST_WAIT_S):
        if _now() >= end:
            return
        yield
        await asyncio.sleep(pause)


def _to_aws_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _token_filter(token: str) -> dict[str, Any]:
    return {"Name": f"tag:{TOKEN_TAG}", "Values": [token]}
