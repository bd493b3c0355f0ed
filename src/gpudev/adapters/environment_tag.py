"""Two environments in one account: each sees the volumes and snapshots that it made, and those that nobody tagged.

Whatever a cloud adapter makes is tagged with its environment. Listings leave out what has another environment's tag,
so that nobody offers, counts or deletes it; what has none was made before there were tags, or by hand, and is in all
listings. Asking by an id is not restricted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpudev.ports.cloud import ENVIRONMENT_TAG, Snapshot, Volume

_Resource = TypeVar("_Resource", Volume, Snapshot)


@dataclass(frozen=True, slots=True)
class EnvironmentTag:
    environment: str | None
    """None: nothing is tagged, and everything is listed."""

    def add_to(self, tags: Mapping[str, str]) -> dict[str, str]:
        return dict(tags) if self.environment is None else {**tags, ENVIRONMENT_TAG: self.environment}

    def select(self, found: Iterable[_Resource]) -> list[_Resource]:
        """Those that are not another environment's."""
        own = self.environment
        return [one for one in found if own is None or one.tags.get(ENVIRONMENT_TAG, own) == own]
