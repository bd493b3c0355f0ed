"""Store: records of one kind of object, by name, each with its resource version.

Resource versions of one kind only grow. The older of two states is therefore dropped, whether it came from the watch, a
list or the response to a write. So a write response can be stored at once and never undoes a newer watch event. The
store does not know the API or what records mean.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpudev.adapters.kubernetes.client.resource_kinds import Manifest

R = TypeVar("R")


class Store(Generic[R]):
    def __init__(
        self, to_record: Callable[[Manifest], R | None], on_change: Callable[[str, R | None, R | None], None]
    ) -> None:
        """`to_record` makes the record of an object; None: nothing is kept. `on_change` gets the name, the old and the
        new record; None: there was or is none."""
        self.to_record = to_record
        self._on_change = on_change
        self._records: dict[str, tuple[int, R]] = {}
        self._version = 0
        """The newest version that the watch or the last list delivered."""

    @property
    def version(self) -> str:
        return str(self._version)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, item: Manifest, *, is_write_response: bool = False) -> None:
        """Store a watch event, or with `is_write_response` a write's response, which may be older or newer than it."""
        version = object_version(item)
        if version <= self._version and is_write_response:
            return  # the watch is past this version: if it were still valid, it would be here
        name = object_key(item)
        if name in self._records and self._records[name][0] >= version:
            self._advance_version(version, is_write_response)
            return
        self._set(name, version, self.to_record(item))
        self._advance_version(version, is_write_response)

    def remove(self, item: Manifest) -> R | None:
        """Apply a deletion from the watch. Returns the record of its last state."""
        name, version = object_key(item), object_version(item)
        self._advance_version(version, False)
        if name in self._records and self._records[name][0] <= version:
            self._set(name, version, None)
        return self.to_record(item)

    def advance(self, item: Manifest) -> None:
        """Apply a bookmark: no event for us until this version."""
        self._advance_version(object_version(item), False)

    def replace(self, listed: Mapping[str, tuple[int, R]], version: str) -> list[R]:
        """Apply a complete list at `version`. Newer records stay. Returns the records that disappeared unobserved."""
        self._version = int(version)
        gone = [
            name
            for name, (record_version, _) in self._records.items()
            if name not in listed and record_version <= self._version
        ]
        gone_records = [self._records[name][1] for name in gone]
        for name in gone:
            self._set(name, self._version, None)
        for name, (record_version, record) in listed.items():
            if name not in self._records or self._records[name][0] < record_version:
                self._set(name, record_version, record)
        return gone_records

    def _set(self, name: str, version: int, record: R | None) -> None:
        _, old = self._records.get(name, (0, None))
        if record is None:
            self._records.pop(name, None)
        else:
            # An equal record keeps its identity, so that comparisons by `is` show no change.
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
