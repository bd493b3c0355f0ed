"""Replacing the machines of Auto Scaling groups: AWS calls it an instance refresh."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudev.adapters.aws.client import AwsClient
from gpudev.adapters.aws.errors import AwsRejected
from gpudev.adapters.aws.permissions import Action
from gpudev.domain.errors import NotFound, Unavailable
from gpudev.ports.cloud import MachineRefresh, RefreshState

_IN_PROGRESS_CODE = "InstanceRefreshInProgress"
_VALIDATION_CODE = "ValidationError"
_DONE_STATUSES = frozenset({"Successful"})
_FAILED_STATUSES = frozenset({"Failed", "Cancelled", "RollbackFailed", "RollbackSuccessful"})


class AwsNodeGroups:
    def __init__(self, client: AwsClient) -> None:
        self._client = client

    async def machines(self, group: str) -> Sequence[str]:
        found = await self._client.call(Action.DESCRIBE_GROUPS, {"AutoScalingGroupNames": [group]})
        for told in found["AutoScalingGroups"]:
            if told["AutoScalingGroupName"] == group:
                return sorted(instance["InstanceId"] for instance in told.get("Instances", ()))
        raise NotFound(f"AWS knows no Auto Scaling group {group!r} here")

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        try:
            found = await self._client.call(
                Action.DESCRIBE_REFRESHES, {"AutoScalingGroupName": group, "MaxRecords": _MAX_RECORDS}
            )
        except AwsRejected as refusal:
            if refusal.aws_code == _VALIDATION_CODE:
                await self.machines(group)  # says so, if there is no such group
            raise
        # The newest comes first, whether it is under way or over.
        return next(map(_parse_refresh, found["InstanceRefreshes"]), None)

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        preferences = {"MinHealthyPercentage": keep_percent, "InstanceWarmup": warmup_seconds}
        try:
            # Sent again, it finds itself under way: nothing is replaced twice.
            begun = await self._client.call(
                Action.START_REFRESH, {"AutoScalingGroupName": group, "Preferences": preferences}
            )
        except AwsRejected as refusal:
            if refusal.aws_code != _IN_PROGRESS_CODE:
                raise
            last = await self.last_refresh(group)
            if last is None or last.state is not RefreshState.RUNNING:  # it ended between the two questions
                raise Unavailable(f"AWS was just replacing the machines of {group}: ask again") from refusal
            return last
        return MachineRefresh(begun["InstanceRefreshId"], RefreshState.RUNNING, 0, "Pending")


_MAX_RECORDS = 1


def _parse_refresh(fields: Mapping[str, Any]) -> MachineRefresh:
    status = fields["Status"]
    state = RefreshState.RUNNING
    if status in _DONE_STATUSES:
        state = RefreshState.DONE
    elif status in _FAILED_STATUSES:
        state = RefreshState.FAILED
    reason = fields.get("StatusReason")
    return MachineRefresh(
        fields["InstanceRefreshId"],
        state,
        fields.get("PercentageComplete", 0),
        f"{status}: {reason}" if reason else status,
    )
