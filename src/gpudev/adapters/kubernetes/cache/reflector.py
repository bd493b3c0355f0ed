"""Keeps one shelf true: lists once, then watches, and lists again only when it must.

A watch that ends or is cut is resumed where it stopped, so nothing is missed. When the API server no longer remembers
that far back, or we were cut off for so long that nobody may rely on us anyway, everything is listed anew; a listing
that breaks off changes nothing. `fresh_at` says when we last knew ourselves to be up to date.
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
_LONGEST_PAUSE_S = 2.0


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
        on_deleted: Callable[[R, bool], None] = lambda _record, _was_seen: None,
    ) -> None:
        """`lost`: told what is no more, and whether we saw it go."""
        self.kind = kind
        self.fresh_at: datetime | None = None
        self.problem: str | None = None
        """Why there is no connection right now, in words."""
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
                log.info("mirror.expired", kind=self.kind.plural, error=str(error))
                await self._back_off()
            except (Unavailable, ClusterError) as error:
                self.problem = str(error)
                if not self._failures:
                    log.warning("mirror.cut_off", kind=self.kind.plural, error=self.problem)
                await self._back_off()
            except Exception:  # whatever it is, a mirror that stands still for ever is worse
                self._needs_list, self.problem = True, "an error of our own; see the log"
                log.exception("mirror.failed", kind=self.kind.plural)
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
            async for what, item in events:
                self._handle_event(what, item)
                self._mark_fresh()
                self._failures = 0
        if asyncio.get_running_loop().time() - began_at < min(1.0, self._watch_timeout.total_seconds() / 2):
            await self._back_off()  # opened and closed at once: somebody in between does not mean it well
        else:
            self._mark_fresh()
            self._failures = 0

    def _handle_event(self, what: str, item: Manifest) -> None:
        match what:
            case "ADDED" | "MODIFIED":
                self._store.put(item)
            case "DELETED":
                record = self._store.remove(item)
                if record is not None:
                    self._on_deleted(record, True)
            case "BOOKMARK":
                self._store.advance(item)
            case _:
                raise Unavailable(f"the watch told of an event of an unknown kind: {what}")

    def _is_stale(self) -> bool:
        """Then the first events of a resumed watch are history, and being connected does not mean being up to date."""
        return self.fresh_at is None or self._clock.now() - self.fresh_at > self._stale_after

    def _mark_fresh(self) -> None:
        self.fresh_at = self._clock.now()
        self.problem = None

    async def _back_off(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff(self._failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, jitter=random.uniform(0.5, 1.0)))
