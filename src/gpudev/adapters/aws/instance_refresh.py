"""Replacing the machines of Auto Scaling groups: AWS calls it an instance refresh."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpudev.adapters.aws.client import AwsCaller
from gpudev.adapters.aws.errors import Refusal
from gpudev.adapters.aws.permissions import Action
from gpudev.domain.errors import NotFound, Unavailable
from gpudev.ports.node_groups import Refresh, RefreshState

_UNDER_WAY = "InstanceRefreshInProgress"
_NOT_VALID = "ValidationError"
_DONE = frozenset({"Successful"})
_FAILED = frozenset({"Failed", "Cancelled", "RollbackFailed", "RollbackSuccessful"})


class AwsGroups:
    def __init__(self, caller: AwsCaller) -> None:
        self._caller = caller

    async def machines(self, group: str) -> Sequence[str]:
        found = await self._caller.call(Action.DESCRIBE_GROUPS, {"AutoScalingGroupNames": [group]})
        for told in found["AutoScalingGroups"]:
            if told["AutoScalingGroupName"] == group:
                return sorted(instance["InstanceId"] for instance in told.get("Instances", ()))
        raise NotFound(f"AWS knows no Auto Scaling group {group!r} here")

    async def last_refresh(self, group: str) -> Refresh | None:
        try:
            found = await self._caller.call(
                Action.DESCRIBE_REFRESHES, {"AutoScalingGroupName": group, "MaxRecords": _ONE_PAGE}
            )
        except Refusal as refusal:
            if refusal.aws_code == _NOT_VALID:
                await self.machines(group)  # says so, if there is no such group
            raise
        # The newest comes first, whether it is under way or over.
        return next(map(_refresh_from, found["InstanceRefreshes"]), None)

    async def ensure_refresh(self, group: str, *, keep_percent: int, warmup_seconds: int) -> Refresh:
        preferences = {"MinHealthyPercentage": keep_percent, "InstanceWarmup": warmup_seconds}
        try:
            # Sent again, it finds itself under way: nothing is replaced twice.
            begun = await self._caller.call(
                Action.START_REFRESH, {"AutoScalingGroupName": group, "Preferences": preferences}
            )
        except Refusal as refusal:
            if refusal.aws_code != _UNDER_WAY:
                raise
            last = await self.last_refresh(group)
            if last is None or last.state is not RefreshState.RUNNING:  # it ended between the two questions
                raise Unavailable(f"AWS was just replacing the machines of {group}: ask again") from refusal
            return last
        return Refresh(begun["InstanceRefreshId"], RefreshState.RUNNING, 0, "Pending")


_ONE_PAGE = 1


def _refresh_from(told: Mapping[str, Any]) -> Refresh:
    status = told["Status"]
    state = RefreshState.RUNNING
    if status in _DONE:
        state = RefreshState.DONE
    elif status in _FAILED:
        state = RefreshState.FAILED
    reason = told.get("StatusReason")
    return Refresh(
        told["InstanceRefreshId"],
        state,
        told.get("PercentageComplete", 0),
        f"{status}: {reason}" if reason else status,
    )
