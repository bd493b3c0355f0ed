"""The last log lines of pods that died: fetched once per death, in the background. Nobody who looks waits for them."""

import asyncio
from collections.abc import Callable, Collection

import structlog

from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.domain.errors import GpuDevError

log = structlog.get_logger(__name__)

_LINES = 12
_LONGEST = 2000
_FETCH_WITHIN_S = 3.0


class LastWords:
    def __init__(self, api: KubernetesApi, tell: Callable[[], None]) -> None:
        """`tell` is called when words have come, or will not come."""
        self._api = api
        self._tell = tell
        self._known: dict[str, str] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def find(self, uid: str, pod: str, container: str) -> str | None:
        """None: not known yet, and `tell` will be called. Empty: there are none."""
        if uid not in self._known and uid not in self._asking:
            self._asking[uid] = asyncio.create_task(self._ask(uid, pod, container), name=f"last words of {pod}")
        return self._known.get(uid)

    def forget_all_but(self, uids: Collection[str]) -> None:
        for uid in self._known.keys() - uids:
            del self._known[uid]

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, uid: str, pod: str, container: str) -> None:
        text = ""
        try:
            async with asyncio.timeout(_FETCH_WITHIN_S):
                text = await self._api.pod_log(pod, container, _LINES) or ""
        except (GpuDevError, TimeoutError) as error:
            log.info("kubernetes.no_last_words", pod=pod, error=str(error) or "too slow")
        finally:
            self._asking.pop(uid, None)
        self._known[uid] = text.strip()[-_LONGEST:]
        self._tell()
