"""Quota: how many disks and how many GB one user may have."""

from dataclasses import dataclass

from gpudev.domain.disks.operations import DiskSettings
from gpudev.domain.errors import LimitReached


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """A user's living disks."""

    count: int
    size_gb: int


def check_quota(usage: DiskUsage, settings: DiskSettings, *, more: int, more_gb: int) -> None:
    """Raises LimitReached if `more` disks or `more_gb` would exceed the quota."""
    if usage.count + more > settings.max_per_user:
        raise LimitReached(f"you have {usage.count} disks; the limit is {settings.max_per_user}")
    if usage.size_gb + more_gb > settings.max_gb_per_user:
        raise LimitReached(
            f"your disks have {usage.size_gb} GB in total; {more_gb} GB more would exceed {settings.max_gb_per_user} GB"
        )
