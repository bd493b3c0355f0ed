"""What is known of one kind of object, by name, each with the version it was seen at. Knows no API and no meaning.

Versions are the API server's; for one kind they only grow, so the older of two sightings is dropped, whichever way it
came. That lets the answer to a write be taken in at once without ever undoing what the watch has told since.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest

R = TypeVar("R")


class Store(Generic[R]):
    def __init__(
        self, to_record: Callable[[Manifest], R | None], on_change: Callable[[str, R | None, R | None], None]
    ) -> None:
        """`trim`: what is kept of an object; None: nothing. `changed`: told name, what was and what is kept."""
        self.to_record = to_record
        self._on_change = on_change
        self._records: dict[str, tuple[int, R]] = {}
        self._version = 0
        """What the watch or the last listing has brought us up to."""

    @property
    def version(self) -> str:
        return str(self._version)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, item: Manifest, *, is_write_response: bool = False) -> None:
        """As told by the watch, or `is_answer`: by the answer to a write, which may be behind or ahead of it."""
        version = object_version(item)
        if version <= self._version and is_write_response:
            return  # the watch has passed this moment: had it lasted, it would be here
        name = object_key(item)
        if name in self._records and self._records[name][0] >= version:
            self._advance_version(version, is_write_response)
            return
        self._set(name, version, self.to_record(item))
        self._advance_version(version, is_write_response)

    def remove(self, item: Manifest) -> R | None:
        """As told by the watch. Answers its last state."""
        name, version = object_key(item), object_version(item)
        self._advance_version(version, False)
        if name in self._records and self._records[name][0] <= version:
            self._set(name, version, None)
        return self.to_record(item)

    def advance(self, item: Manifest) -> None:
        """A bookmark: nothing of ours happened until then."""
        self._advance_version(object_version(item), False)

    def replace(self, listed: Mapping[str, tuple[int, R]], version: str) -> list[R]:
        """All there was at `version`. Answers what has gone without our seeing it. What is known to be newer stays."""
        self._version = int(version)
        gone = [name for name, (seen_at, _) in self._records.items() if name not in listed and seen_at <= self._version]
        lost = [self._records[name][1] for name in gone]
        for name in gone:
            self._set(name, self._version, None)
        for name, (seen_at, record) in listed.items():
            if name not in self._records or self._records[name][0] < seen_at:
                self._set(name, seen_at, record)
        return lost

    def _set(self, name: str, version: int, record: R | None) -> None:
        _, old = self._records.get(name, (0, None))
        if record is None:
            self._records.pop(name, None)
        else:
            # What is equal is kept as it was, so that whoever compares sees no change.
            self._records[name] = (version, old if old is not None and old == record else record)
        if old != record:
            self._on_change(name, old, record)

    def _advance_version(self, version: int, is_write_response: bool) -> None:
        if not is_write_response:
            self._version = max(self._version, version)


def object_key(item: Manifest) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def object_version(item: Manifest) -> int:
    return int(item["metadata"]["resourceVersion"])
