"""Disk names, and the names with a special meaning."""

import re

from gpudev.domain.errors import Invalid

DEFAULT_DISK = "default"
"""The disk a reservation gets when it names none and nothing else holds it."""
NO_DISK = "none"
"""Asking for this disk means: scratch space that ends with the reservation."""
_NAME = re.compile(r"[a-z0-9-]{1,63}")


def check_disk_name(name: str, field: str = "disk_name") -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"invalid disk name {name[:80]!r} (expected 1 to 63 of a-z, 0-9 and '-')", field=field)
    return name


def check_new_disk_name(name: str, field: str = "disk_name") -> str:
    """One that a disk may be given."""
    if name == NO_DISK:
        raise Invalid(f"{NO_DISK!r} means no disk; choose another name", field=field)
    return check_disk_name(name, field)
