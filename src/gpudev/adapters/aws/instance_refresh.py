"""Machine refresh of Auto Scaling groups: AWS calls it an instance refresh."""

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
        response = await self._client.call(Action.DESCRIBE_GROUPS, {"AutoScalingGroupNames": [group]})
        for fields in response["AutoScalingGroups"]:
            if fields["AutoScalingGroupName"] == group:
                return sorted(instance["InstanceId"] for instance in fields.get("Instances", ()))
        raise NotFound(f"no Auto Scaling group named {group!r} in this region")

    async def last_refresh(self, group: str) -> MachineRefresh | None:
        try:
            response = await self._client.call(
                Action.DESCRIBE_REFRESHES, {"AutoScalingGroupName": group, "MaxRecords": _MAX_RECORDS}
            )
        except AwsRejected as error:
            if error.aws_code == _VALIDATION_CODE:
                await self.machines(group)  # raises NotFound if there is no such group
            raise
        # The newest comes first, whether it is running or finished.
        return next(map(_parse_refresh, response["InstanceRefreshes"]), None)

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> MachineRefresh:
        preferences = {"MinHealthyPercentage": keep_percent, "InstanceWarmup": warmup_seconds}
        try:
            # A repeated request finds the refresh in progress: no machine is replaced twice.
            response = await self._client.call(
                Action.START_REFRESH, {"AutoScalingGroupName": group, "Preferences": preferences}
            )
        except AwsRejected as error:
            if error.aws_code != _IN_PROGRESS_CODE:
                raise
            last = await self.last_refresh(group)
            if last is None or last.state is not RefreshState.RUNNING:  # it ended between the two calls
                raise Unavailable(f"an earlier refresh of {group} has just ended: try again") from error
            return last
        return MachineRefresh(response["InstanceRefreshId"], RefreshState.RUNNING, 0, "Pending")


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
