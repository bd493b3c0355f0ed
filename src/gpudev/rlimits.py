"""How many files and connections a process of ours may have open at once.

The usual limit suits programs that were written long ago (1024, on macOS 256); whoever serves many needs more of what
they are allowed anyway. What they start for others begins with the limit as it was.
"""

import resource
from contextlib import suppress

OPEN_FILES_LIMIT = 10_240
"""For whoever serves many. macOS allows no more."""
DEFAULT_OPEN_FILES_LIMIT = 1024
"""What Linux begins with."""
_previous_limits: list[int] = []
"""The limit that was raised, once it was."""


def raise_open_files_limit(limit: int = OPEN_FILES_LIMIT) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # it goes without, too
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _previous_limits.append(soft)


def restore_open_files_limit() -> None:
    """In a fork that becomes somebody else's program."""
    if _previous_limits:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_previous_limits[0], hard))
