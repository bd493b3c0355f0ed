"""Store of the records of one kind of object, and the reflector that keeps it current by list and watch.

The reflector lists once, then watches. A watch that ends is resumed at the version where it stopped, so that no event
is missed. The reflector lists again when the API server no longer has that version, or when the store has become too
old to rely on. A list that fails half-way changes nothing. `fresh_at`: when the store was last known to be current.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import structlog

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, ResourceVersionExpired
from gpudev.adapters.kubernetes.client.resource_kinds import Manifest, ResourceKind
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.clock import Clock

R = TypeVar("R")


class Store(Generic[R]):
    """Records by name, each with its resource version. It does not know the API or what records mean.

    Resource versions of one kind only grow. The older of two states is therefore dropped, whether it came from the
    watch, a list or the response to a write. So a write response can be stored immediately and never undoes a newer
    watch event.
    """

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


log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0


class Reflector(Generic[R]):
    def __init__(
        self,
        api: KubernetesApi,
        kind: ResourceKind,
        store: Store[R],
        clock: Clock,
        *,
        namespace: str | None = None,
        selector: str = "",
        watch_timeout: timedelta,
        stale_after: timedelta,
        on_deleted: Callable[[R, bool], None] = lambda _record, _was_observed: None,
    ) -> None:
        """`on_deleted` gets the record of a deleted object, and whether the watch delivered the deletion."""
        self.kind = kind
        self.fresh_at: datetime | None = None
        self.problem: str | None = None
        """Why there is no connection now; None: there is one."""
        self.list_count = 0
        self.watch_count = 0
        self._api = api
        self._store = store
        self._clock = clock
        self._namespace = namespace
        self._selector = selector
        self._watch_timeout = watch_timeout
        self._stale_after = stale_after
        self._on_deleted = on_deleted
        self._failures = 0
        self._needs_list = True
        self.first_listed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if self._needs_list or self._is_stale():
                    await self._list()
                await self._watch()
            except ResourceVersionExpired as error:
                self._needs_list = True
                log.info("reflector.expired", kind=self.kind.plural, error=str(error))
                await self._back_off()
            except (Unavailable, ClusterError) as error:
                self.problem = str(error)
                if not self._failures:
                    log.warning("reflector.disconnected", kind=self.kind.plural, error=self.problem)
                await self._back_off()
            except Exception:  # a reflector must never stop
                self._needs_list, self.problem = True, "internal error, see the log"
                log.exception("reflector.failed", kind=self.kind.plural)
                await self._back_off()

    async def _list(self) -> None:
        listed: dict[str, tuple[int, R]] = {}
        version = ""
        async for page in self._api.list_pages(self.kind, namespace=self._namespace, selector=self._selector):
            for item in page.items:
                record = self._store.to_record(item)
                if record is not None:
                    listed[object_key(item)] = (object_version(item), record)
            version = page.resource_version
        for record in self._store.replace(listed, version):
            self._on_deleted(record, False)
        self._needs_list = False
        self.list_count += 1
        self._mark_fresh()
        self.first_listed.set()

    async def _watch(self) -> None:
        began_at = asyncio.get_running_loop().time()
        async with self._api.watch(
            self.kind,
            self._store.version,
            timeout=self._watch_timeout,
            namespace=self._namespace,
            selector=self._selector,
        ) as events:
            self.watch_count += 1
            self._mark_fresh()
            async for event_type, item in events:
                self._handle_event(event_type, item)
                self._mark_fresh()
                self._failures = 0
        if asyncio.get_running_loop().time() - began_at < min(1.0, self._watch_timeout.total_seconds() / 2):
            await self._back_off()  # closed immediately, perhaps by a middlebox
        else:
            self._mark_fresh()
            self._failures = 0

    def _handle_event(self, event_type: str, item: Manifest) -> None:
        match event_type:
            case "ADDED" | "MODIFIED":
                self._store.put(item)
            case "DELETED":
                record = self._store.remove(item)
                if record is not None:
                    self._on_deleted(record, True)
            case "BOOKMARK":
                self._store.advance(item)
            case _:
                raise Unavailable(f"invalid watch event {event_type!r} (expected ADDED, MODIFIED, DELETED or BOOKMARK)")

    def _is_stale(self) -> bool:
        """Then the first events of a resumed watch are old, and being connected does not mean being current."""
        return self.fresh_at is None or self._clock.now() - self.fresh_at > self._stale_after

    def _mark_fresh(self) -> None:
        self.fresh_at = self._clock.now()
        self.problem = None

    async def _back_off(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff(self._failures, _FIRST_PAUSE_S, _MAX_PAUSE_S, jitter=random.uniform(0.5, 1.0)))
