"""AWS actions that we call, and which of them each part of the system needs.

`AwsClient.call` accepts only an `Action`, so nothing else can be called. Administrators grant the sets; a test fails
when a part needs more than its set, or less.
"""

import re
from enum import StrEnum


class Action(StrEnum):
    """Named as in IAM."""

    DESCRIBE_GROUPS = "autoscaling:DescribeAutoScalingGroups"
    DESCRIBE_REFRESHES = "autoscaling:DescribeInstanceRefreshes"
    START_REFRESH = "autoscaling:StartInstanceRefresh"
    DESCRIBE_VOLUMES = "ec2:DescribeVolumes"
    DESCRIBE_SNAPSHOTS = "ec2:DescribeSnapshots"
    DESCRIBE_MODIFICATIONS = "ec2:DescribeVolumesModifications"
    CREATE_VOLUME = "ec2:CreateVolume"
    MODIFY_VOLUME = "ec2:ModifyVolume"
    DELETE_VOLUME = "ec2:DeleteVolume"
    CREATE_SNAPSHOT = "ec2:CreateSnapshot"
    DELETE_SNAPSHOT = "ec2:DeleteSnapshot"
    CREATE_TAGS = "ec2:CreateTags"
    """Also needed to create a volume or a snapshot with tags."""

    @property
    def service(self) -> str:
        return self.value.partition(":")[0]

    @property
    def operation(self) -> str:
        return self.value.partition(":")[2]

    @property
    def method(self) -> str:
        """Its name in the AWS library."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.operation).lower()


RECONCILE_AVAILABILITY = frozenset({Action.DESCRIBE_GROUPS})
"""`gpu-dev-server reconcile availability`."""

RECONCILE_DISKS = frozenset({Action.DESCRIBE_VOLUMES, Action.DESCRIBE_SNAPSHOTS})
"""`gpu-dev-server reconcile disks` and `report orphans`."""

DISK_OPERATIONS = frozenset(action for action in Action if action.service == "ec2")
"""Creation, growth, copies and removal of disks: for the processor, and for `expire`, which replaces it."""

NODE_OPERATIONS = frozenset({Action.DESCRIBE_GROUPS, Action.DESCRIBE_REFRESHES, Action.START_REFRESH})
"""`gpu-dev-server nodes groups` and `nodes refresh`."""


def iam_policy(actions: frozenset[Action]) -> dict[str, object]:
    """IAM policy that allows exactly these actions."""
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": sorted(actions), "Resource": "*"}],
    }
