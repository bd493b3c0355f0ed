"""How many files and connections a process of ours may have open."""

import resource
import subprocess
import sys

_LITTLE = 128
_SCRIPT = """
import os, resource
from gpudev import rlimits
limit = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
rlimits.raise_open_files_limit()
rlimits.raise_open_files_limit()
print(limit(), flush=True)
if os.fork() == 0:
    rlimits.restore_open_files_limit()
    print(limit(), flush=True)
    os._exit(0)
os.wait()
print(limit())
"""


def limits(soft: int, hard: int) -> list[int]:
    """Of the process, of one that it starts for somebody else, and of the process afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in done.stdout.split()]


def test_it_takes_what_it_may_and_gives_children_what_was_usual() -> None:
    assert limits(_LITTLE, 4096) == [4096, _LITTLE, 4096]


def test_no_more_than_enough_is_taken_and_nothing_is_taken_away() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > 12_000:
        assert limits(_LITTLE, 12_000) == [10_240, _LITTLE, 10_240]
        assert limits(11_000, 12_000) == [11_000] * 3
    assert limits(_LITTLE, _LITTLE) == [_LITTLE] * 3
