"""How many files and connections a process of ours may have open at once.

The usual limit suits programs that were written long ago (1024, on macOS 256); whoever serves many needs more of what
they are allowed anyway. What they start for others begins with the limit as it was.
"""

import resource
from contextlib import suppress

ENOUGH = 10_240
"""For whoever serves many. macOS allows no more."""
USUAL = 1024
"""What Linux begins with."""
_before: list[int] = []
"""The limit that was raised, once it was."""


def allow_many(enough: int = ENOUGH) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = enough if hard == resource.RLIM_INFINITY else min(hard, enough)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # it goes without, too
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _before.append(soft)


def allow_as_before() -> None:
    """In a fork that becomes somebody else's program."""
    if _before:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_before[0], hard))
