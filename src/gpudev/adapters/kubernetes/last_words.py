"""The last log lines of pods that died: fetched once per death, in the background. Nobody who looks waits for them."""

import asyncio
from collections.abc import Callable, Collection

import structlog

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.domain.errors import GpuDevError

log = structlog.get_logger(__name__)

_CRASH_LOG_LINES = 12
_MAX_CRASH_LOG_LENGTH = 2000
_CRASH_LOG_TIMEOUT_S = 3.0


class CrashLogs:
    def __init__(self, api: KubernetesApi, on_change: Callable[[], None]) -> None:
        """`tell` is called when words have come, or will not come."""
        self._api = api
        self._on_change = on_change
        self._logs: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}

    def find_crash_log(self, uid: str, pod: str, container: str) -> str | None:
        """None: not known yet, and `tell` will be called. Empty: there are none."""
        if uid not in self._logs and uid not in self._fetching:
            self._fetching[uid] = asyncio.create_task(self._fetch(uid, pod, container), name=f"last words of {pod}")
        return self._logs.get(uid)

    def retain_only(self, uids: Collection[str]) -> None:
        for uid in self._logs.keys() - uids:
            del self._logs[uid]

    async def close(self) -> None:
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, uid: str, pod: str, container: str) -> None:
        text = ""
        try:
            async with asyncio.timeout(_CRASH_LOG_TIMEOUT_S):
                text = await self._api.find_pod_log(pod, container, _CRASH_LOG_LINES) or ""
        except (GpuDevError, TimeoutError) as error:
            log.info("kubernetes.no_last_words", pod=pod, error=str(error) or "too slow")
        finally:
            self._fetching.pop(uid, None)
        self._logs[uid] = text.strip()[-_MAX_CRASH_LOG_LENGTH:]
        self._on_change()
