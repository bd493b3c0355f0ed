"""Everything that is built once per machine before the tests that need it can run, and which tests those are.

    python tests/support/builds.py            builds what is missing
    python tests/support/builds.py --check    ends with 0 where nothing is missing

Where something cannot be built, that is said loudly; the tests that need it then skip, with their reason.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.go_program import PROGRAMS, say
from support.kubernetes import real_node
from support.kubernetes.binaries import ensure_binaries, find_binaries

if TYPE_CHECKING:
    import pytest

_FOLDERS = {"kubernetes", "deploy"}
_FIXTURES = {"kube_binaries", "real_node", "helm", "plane", "dex"}
_MODULES = {"support.kubernetes", "support.deploy", "support.go_program"}


def needs_builds(item: "pytest.Item") -> bool:
    """By its folder, its fixtures, or what its module imports."""
    fixtures = set(getattr(item, "fixturenames", ()))
    module = getattr(item, "module", None)
    imported = {getattr(value, "__module__", "") or "" for value in vars(module).values()} if module else set()
    return (
        bool(_FOLDERS & set(item.path.parts))
        or bool(_FIXTURES & fixtures)
        or any(name.startswith(tuple(_MODULES)) for name in imported)
    )


def is_everything_built() -> bool:
    return (
        find_binaries() is not None
        and all(program.find() is not None for program in PROGRAMS.values())
        and real_node.is_prepared()
    )


def build() -> None:
    """The small programs first: more tests wait for them than their share of the time."""
    for program in PROGRAMS.values():
        try:
            program.ensure()
        except (OSError, RuntimeError) as problem:
            say(
                f"{problem}\n########## CANNOT BUILD {program.name}: the tests that need it will be SKIPPED. ##########"
            )
    try:
        ensure_binaries()
        real_node.prepare()
    except (OSError, RuntimeError) as problem:
        say(f"{problem}\n########## CANNOT BUILD KUBERNETES: the tests that need it will be SKIPPED. ##########")


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if is_everything_built() else 1)
    build()
