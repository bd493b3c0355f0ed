"""Disk names, and the names with a special meaning."""

import hashlib
import re

from gpudev.domain.errors import Invalid

DEFAULT_DISK = "default"
"""The disk of a reservation that names none, unless another live reservation has it."""
NO_DISK = "none"
"""As a disk name: scratch space, lost at release."""
_LONGEST = 63
_NAME = re.compile(rf"[a-z0-9-]{{1,{_LONGEST}}}")


def check_disk_name(name: str, field: str = "disk_name") -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"invalid disk name {name[:80]!r} (expected 1 to 63 of a-z, 0-9 and '-')", field=field)
    return name


def is_disk_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def map_disk_name(name: str) -> str:
    """The disk name of a volume that is tagged with another system's: lower case, with '-' for all other characters."""
    if is_disk_name(name):
        return name
    mapped = _replace_characters(name)
    return mapped if mapped not in ("", NO_DISK) and is_disk_name(mapped) else map_to_distinct_disk_name(name)


def map_to_distinct_disk_name(name: str) -> str:
    """The same with a suffix that depends on the whole name, because another volume's name is mapped to the same."""
    suffix = f"-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"{_replace_characters(name)[: _LONGEST - len(suffix)] or 'disk'}{suffix}"


def _replace_characters(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def check_new_disk_name(name: str, field: str = "disk_name") -> str:
    """The name of a new disk. Raises Invalid."""
    if name == NO_DISK:
        raise Invalid(f"{NO_DISK!r} means no disk; choose another name", field=field)
    return check_disk_name(name, field)
