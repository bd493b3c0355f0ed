"""Every AWS action that is ever called, and which of them each part may use.

`calling` takes nothing but an `Action`, so what is not here cannot be asked for. The sets are what an administrator
grants: a test fails when a part needs more than its set, or less.
"""

import re
from enum import StrEnum


class Action(StrEnum):
    """By its name in IAM."""

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
    """Also asked of whoever makes a volume or a snapshot that has tags from the start."""

    @property
    def service(self) -> str:
        return self.value.partition(":")[0]

    @property
    def operation(self) -> str:
        return self.value.partition(":")[2]

    @property
    def method(self) -> str:
        """As the AWS library calls it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.operation).lower()


RECONCILE_AVAILABILITY = frozenset({Action.DESCRIBE_GROUPS})
"""`gpu-dev-server reconcile availability`."""

RECONCILE_DISKS = frozenset({Action.DESCRIBE_VOLUMES, Action.DESCRIBE_SNAPSHOTS})
"""`gpu-dev-server reconcile disks` and `report orphans`."""

DISK_OPERATIONS = frozenset(action for action in Action if action.service == "ec2")
"""Making, growing, copying and removing disks: the processor, and `expire`, which puts disks away in its place."""

NODE_OPERATIONS = frozenset({Action.DESCRIBE_GROUPS, Action.DESCRIBE_REFRESHES, Action.START_REFRESH})
"""`gpu-dev-server nodes groups` and `nodes refresh`."""

EKS_ACCESS = frozenset({"eks:DescribeCluster", "sts:GetCallerIdentity"})
"""Beside any of them, where the cluster is EKS and is reached from outside of it. AWS allows everybody the latter."""


def iam_policy(actions: frozenset[Action]) -> dict[str, object]:
    """An IAM policy that allows exactly these."""
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": sorted(actions), "Resource": "*"}],
    }
