"""Disk names, and the names with a special meaning."""

import re

from gpudev.domain.errors import Invalid

DEFAULT_DISK = "default"
"""The disk of a reservation that names none, unless another live reservation has it."""
NO_DISK = "none"
"""As a disk name: scratch space, lost at release."""
_NAME = re.compile(r"[a-z0-9-]{1,63}")


def check_disk_name(name: str, field: str = "disk_name") -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"invalid disk name {name[:80]!r} (expected 1 to 63 of a-z, 0-9 and '-')", field=field)
    return name


def check_new_disk_name(name: str, field: str = "disk_name") -> str:
    """The name of a new disk. Raises Invalid."""
    if name == NO_DISK:
        raise Invalid(f"{NO_DISK!r} means no disk; choose another name", field=field)
    return check_disk_name(name, field)
