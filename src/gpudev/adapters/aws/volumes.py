"""Actions on EBS volumes and snapshots. Each may be repeated.

Another process may also repeat an action, after a crash. EC2 creates one volume per client token. Snapshots have no
client token: we search by tag, send the creation once without retries, and search again when its result is unknown. A
new resource may not be visible everywhere yet, so ids that this process created are remembered for a while.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from gpudev.adapters.aws.client import AwsClient, AwsRejected, AwsThrottled
from gpudev.adapters.aws.parsing import parse_snapshot, parse_volume
from gpudev.adapters.aws.permissions import Action
from gpudev.adapters.environment_tag import EnvironmentTag
from gpudev.domain.backoff import growing_pauses
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.cloud import TOKEN_TAG, Snapshot, Volume

_T = TypeVar("_T")
_Resource = TypeVar("_Resource", Volume, Snapshot)
_FIRST_WAIT_S = 0.1
_MAX_WAIT_S = 3.0
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
        """Returns the volume with its present size. EC2 grows it in the background; a later call shows the new size."""
        volume = await self._get_volume(volume_id)
        if volume.size_gb >= size_gb or await self._is_growing(volume_id, size_gb):
            return volume
        with contextlib.suppress(_AlreadyGrowing):
            try:
                await self._client.call(Action.MODIFY_VOLUME, {"VolumeId": volume_id, "Size": size_gb})
            except AwsRejected as error:
                # The library repeated a request whose response was lost: the first one is in progress.
                if error.aws_code == "IncorrectModificationState" and await self._is_growing(volume_id, size_gb):
                    raise _AlreadyGrowing from error
                raise
        return await self._get_volume(volume_id)

    async def tag_volume(self, volume_id: str, tags: Mapping[str, str]) -> None:
        parameters = {"Resources": [volume_id], "Tags": _to_aws_tags(self._environment_tag.add_to(tags))}
        await self._act_on_recently_created(volume_id, lambda: self._client.call(Action.CREATE_TAGS, parameters))

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        return await self._find_recently_created(snapshot_id, lambda: self._describe_snapshot(snapshot_id))

    async def ensure_snapshot(self, token: str, volume_id: str, tags: Mapping[str, str]) -> Snapshot:
        async with self._hold_token(token):
            if (found := await self._find_snapshot_by_token(token, volume_id)) is not None:
                return found
            parameters = {
                "VolumeId": volume_id,
                "TagSpecifications": [self._tag_specification("snapshot", token, tags)],
            }
            try:
                fields = await self._act_on_recently_created(volume_id, lambda: self._create_snapshot(parameters))
            except AwsThrottled:
                raise
            except Unavailable:
                # It may exist. Another request could create a second one.
                if (found := await self._await_snapshot(token, volume_id)) is not None:
                    return found
                raise
            snapshot = parse_snapshot(fields)
            self._created.add(snapshot.snapshot_id, token=token)
            return snapshot

    async def remove_volume(self, volume_id: str) -> None:
        await self._remove(volume_id, Action.DELETE_VOLUME, {"VolumeId": volume_id})

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._remove(snapshot_id, Action.DELETE_SNAPSHOT, {"SnapshotId": snapshot_id})

    # --- reads -----------------------------------------------------------------------------------------------------

    async def _describe_volume(self, volume_id: str) -> Volume | None:
        fields = await self._describe_one(Action.DESCRIBE_VOLUMES, "Volumes", "VolumeIds", volume_id)
        return None if fields is None else parse_volume(fields)

    async def _describe_snapshot(self, snapshot_id: str) -> Snapshot | None:
        fields = await self._describe_one(Action.DESCRIBE_SNAPSHOTS, "Snapshots", "SnapshotIds", snapshot_id)
        return None if fields is None else parse_snapshot(fields)

    async def _describe_one(self, action: Action, key: str, ids: str, resource_id: str) -> Mapping[str, Any] | None:
        """None only for a definite "not found"."""
        try:
            response = await self._client.call(action, {ids: [resource_id]})
        except AwsRejected as error:
            if error.is_not_found:
                return None
            raise
        if len(response.get(key, ())) != 1:
            raise Unavailable(f"invalid AWS response to {action} for {resource_id}")
        fields: Mapping[str, Any] = response[key][0]
        return fields

    async def _get_volume(self, volume_id: str) -> Volume:
        volume = await self.find_volume(volume_id)
        if volume is None:
            raise ClusterError(f"volume {volume_id} not found")
        return volume

    async def _find_volume_by_token(self, token: str) -> Volume | None:
        return await self._find_oldest(Action.DESCRIBE_VOLUMES, "Volumes", [_token_filter(token)], parse_volume)

    async def _find_snapshot_by_token(self, token: str, volume_id: str) -> Snapshot | None:
        """Also filters by volume: a copy of the snapshot may have its tags, but never its volume."""
        if (created_id := self._created.find_by_token(token)) is not None:
            return await self.find_snapshot(created_id)
        filters = [_token_filter(token), {"Name": "volume-id", "Values": [volume_id]}]
        return await self._find_oldest(Action.DESCRIBE_SNAPSHOTS, "Snapshots", filters, parse_snapshot)

    async def _find_oldest(
        self,
        action: Action,
        key: str,
        filters: list[dict[str, Any]],
        read: Callable[[Mapping[str, Any]], _Resource | None],
    ) -> _Resource | None:
        """None: no resource matches."""
        own: dict[str, Any] = {"OwnerIds": ["self"]} if action is Action.DESCRIBE_SNAPSHOTS else {}
        found: list[_Resource] = []
        async for page in self._client.list_pages(action, key, {**own, "Filters": filters}):
            found += [resource for resource in map(read, page) if resource is not None]
        return min(found, key=lambda resource: resource.created_at, default=None)

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
            for fields in page:
                if fields["ModificationState"] in _GROWING_STATES and fields.get("TargetSize", 0) >= size_gb:
                    return True
        return False

    # --- writes ----------------------------------------------------------------------------------------------------

    async def _create_volume(
        self, token: str, size_gb: int, zone: str, tags: Mapping[str, str], from_snapshot: str | None
    ) -> Volume:
        parameters: dict[str, Any] = {
            "ClientToken": token,
            "AvailabilityZone": zone,
            "Size": size_gb,
            "VolumeType": _VOLUME_TYPE,
            "Encrypted": True,
            "TagSpecifications": [self._tag_specification("volume", token, tags)],
        }
        if from_snapshot is not None:
            parameters["SnapshotId"] = from_snapshot
        fields = await self._act_on_recently_created(
            from_snapshot, lambda: self._client.call(Action.CREATE_VOLUME, parameters)
        )
        if "VolumeId" not in fields:
            raise Unavailable(f"invalid AWS response to {Action.CREATE_VOLUME}")
        volume = parse_volume(fields)
        if volume is None:
            raise ClusterError(f"the volume {fields['VolumeId']} of this request has been deleted")
        self._created.add(volume.volume_id)
        return volume

    async def _create_snapshot(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        attempts = self._client.limits.attempts
        async for _ in _backoff(self._client.limits.deadline.total_seconds()):
            attempts -= 1
            try:
                fields = await self._client.call(Action.CREATE_SNAPSHOT, parameters, once=True)
            except AwsThrottled:
                if attempts <= 0:
                    raise
                continue
            if "SnapshotId" not in fields:
                raise Unavailable(f"invalid AWS response to {Action.CREATE_SNAPSHOT}")
            return fields
        raise AwsThrottled(f"AWS throttles {Action.CREATE_SNAPSHOT}")

    async def _remove(self, resource_id: str, action: Action, parameters: Mapping[str, str]) -> None:
        try:
            await self._act_on_recently_created(resource_id, lambda: self._client.call(action, parameters))
        except AwsRejected as error:
            if not error.is_not_found:
                raise
        self._created.forget(resource_id)

    async def _find_recently_created(self, resource_id: str, find: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """Retry a recently created resource that is not visible yet, instead of taking it for deleted."""
        found = await find()
        if found is not None or not self._created.is_recent(resource_id):
            return found
        async for _ in _backoff(self._created.seconds_left(resource_id)):
            if (found := await find()) is not None:
                return found
        return None

    async def _act_on_recently_created(self, resource_id: str | None, act: Callable[[], Awaitable[_T]]) -> _T:
        """Retry an action on a recently created resource that is not visible yet."""
        async for _ in _backoff(self._created.seconds_left(resource_id)):
            try:
                return await act()
            except AwsRejected as error:
                if not error.is_not_found:
                    raise
        return await act()

    def _tag_specification(self, kind: str, token: str, tags: Mapping[str, str]) -> dict[str, Any]:
        return {"ResourceType": kind, "Tags": _to_aws_tags({**self._environment_tag.add_to(tags), TOKEN_TAG: token})}

    @contextlib.asynccontextmanager
    async def _hold_token(self, token: str) -> AsyncIterator[None]:
        """Without it two concurrent calls with one token would both find nothing and both create the resource."""
        token_lock = self._token_locks.setdefault(token, _TokenLock())
        token_lock.users += 1
        try:
            async with token_lock.lock:
                yield
        finally:
            token_lock.users -= 1
            if token_lock.users == 0:
                del self._token_locks[token]


class _TokenLock:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class _AlreadyGrowing(Exception):
    """The volume is growing already."""


class _RecentlyCreated:
    """Ids of resources that this process created a short while ago, also by token."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._expires_at: dict[str, float] = {}
        self._id_by_token: dict[str, str] = {}

    def add(self, resource_id: str, *, token: str | None = None) -> None:
        self._drop_old()
        self._expires_at[resource_id] = _now() + self._seconds
        if token is not None:
            self._id_by_token[token] = resource_id

    def find_by_token(self, token: str) -> str | None:
        self._drop_old()
        return self._id_by_token.get(token)

    def is_recent(self, resource_id: str) -> bool:
        return self.seconds_left(resource_id) > 0

    def seconds_left(self, resource_id: str | None) -> float:
        return max(0.0, self._expires_at.get(resource_id or "", 0.0) - _now())

    def forget(self, resource_id: str) -> None:
        self._expires_at.pop(resource_id, None)
        self._drop_old()

    def _drop_old(self) -> None:
        now = _now()
        self._expires_at = {resource_id: until for resource_id, until in self._expires_at.items() if until > now}
        self._id_by_token = {
            token: resource_id for token, resource_id in self._id_by_token.items() if resource_id in self._expires_at
        }


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _backoff(seconds: float) -> AsyncIterator[None]:
    """Yields at growing intervals until `seconds` are over; never for 0 seconds."""
    end = _now() + seconds
    for pause in growing_pauses(_FIRST_WAIT_S, _MAX_WAIT_S):
        if _now() >= end:
            return
        yield
        await asyncio.sleep(pause)


def _to_aws_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _token_filter(token: str) -> dict[str, Any]:
    return {"Name": f"tag:{TOKEN_TAG}", "Values": [token]}
