"""The limit on open files and connections of our processes.

The default soft limit (1024, on macOS 256) is too low for a server, so services raise it within the hard limit. Child
processes for users start with the original limit.
"""

import resource
from contextlib import suppress

OPEN_FILES_LIMIT = 10_240
"""For services. macOS allows no more."""
DEFAULT_OPEN_FILES_LIMIT = 1024
"""The default on Linux."""
_previous_limits: list[int] = []
"""The original soft limit, once it was raised."""


def raise_open_files_limit(limit: int = OPEN_FILES_LIMIT) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # optional
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _previous_limits.append(soft)


def restore_open_files_limit() -> None:
    """For a fork that will execute a user's program."""
    if _previous_limits:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_previous_limits[0], hard))
