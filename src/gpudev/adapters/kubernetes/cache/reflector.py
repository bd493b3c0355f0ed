"""Reflector: keeps the store of one kind current by list and watch.

It lists once, then watches. A watch that ends is resumed at the version where it stopped, so that no event is missed.
It lists again when the API server no longer has that version, or when the store has become too old to rely on. A list
that fails half-way changes nothing. `fresh_at` says when the store was last known to be current.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic

import structlog

from gpudev.adapters.kubernetes.cache.store import R, Store, object_key, object_version
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi, ResourceVersionExpired
from gpudev.adapters.kubernetes.client.resource_kinds import Manifest, ResourceKind
from gpudev.domain.backoff import backoff
from gpudev.domain.errors import ClusterError, Unavailable
from gpudev.ports.clock import Clock

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
            except Exception:  # a reflector that stops for ever is worse than any error
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
