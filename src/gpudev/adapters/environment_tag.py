"""Environment tag: keeps volumes and snapshots of two environments in one account apart.

A cloud adapter tags everything it creates with its environment. Listings leave out resources with another
environment's tag, so that they are never offered, counted or deleted. Untagged resources are older than tags, or made
by hand; they are in all listings. Access by id is not restricted.
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

    def select(self, resources: Iterable[_Resource]) -> list[_Resource]:
        """Leaves out resources of other environments."""
        own = self.environment
        return [resource for resource in resources if own is None or resource.tags.get(ENVIRONMENT_TAG, own) == own]
