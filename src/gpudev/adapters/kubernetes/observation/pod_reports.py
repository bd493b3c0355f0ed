"""What became of owners' own set-ups, as the dev servers' own program tells: asked in the background until it has come
to an end. Nobody who looks waits for it, and nobody is asked who was given nothing.

Whoever has the pod may have changed what runs there: what it says is a stranger's text.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

import orjson
import structlog

from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.objects.pod_manifest import BINARY, CONTAINER
from gpudev.domain.errors import ClusterError, GpuDevError

log = structlog.get_logger(__name__)

_AT_ONCE = 20
_WAITS_FOR_S = 3
_ANSWERS_WITHIN = timedelta(seconds=_WAITS_FOR_S + 7)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_MOST_BYTES = 16 * 1024
_LONGEST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class SetupReport:
    words: str
    is_final: bool


class SetupReports:
    def __init__(self, api: KubernetesApi, tell: Callable[[], None]) -> None:
        """`tell` is called when there is news."""
        self._api = api
        self._tell = tell
        self._known: dict[str, SetupReport] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def find(self, parts: ServerParts) -> str | None:
        """So far; None: there is none, or nothing is known yet. Cheap: asked at every look."""
        pod = next((one for one in parts.pods if _was_given_one(one)), None)
        if pod is None:
            return None
        known = self._known.get(pod.uid)
        if pod.uid not in self._asking and (known is None or not known.is_final):
            self._asking[pod.uid] = asyncio.create_task(self._ask(pod), name=f"set-up of {pod.name}")
        return known.words or None if known is not None else None

    def forget_all_but(self, uids: Collection[str]) -> None:
        for uid in self._known.keys() - uids:
            del self._known[uid]
        for uid in self._asking.keys() - uids:
            self._asking[uid].cancel()

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, pod: PodRecord) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while (report := await self._ask_once(pod)) is None or not report.is_final:
                self._note(pod.uid, report)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._note(pod.uid, report)
        finally:
            self._asking.pop(pod.uid, None)

    async def _ask_once(self, pod: PodRecord) -> SetupReport | None:
        argv = [BINARY, "settled", "--within", f"{_WAITS_FOR_S}s"]
        try:
            async with self._slots:
                said = await self._api.exec_in_pod(
                    pod.name, CONTAINER, argv, timeout=_ANSWERS_WITHIN, most_bytes=_MOST_BYTES
                )
            return read_report(said)
        except GpuDevError as error:
            log.info("kubernetes.setup_not_told", pod=pod.name, error=str(error))
            return None

    def _note(self, uid: str, report: SetupReport | None) -> None:
        if report is not None and report != self._known.get(uid):
            self._known[uid] = report
            self._tell()


def read_report(said: bytes) -> SetupReport:
    """Raises ClusterError where that is no report."""
    try:
        data = orjson.loads(said)
        words, is_final = data["words"], data["final"]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError("what the dev server says of its set-up cannot be read") from error
    if not isinstance(words, str) or not isinstance(is_final, bool):
        raise ClusterError("what the dev server says of its set-up cannot be read")
    plain = "".join(letter for letter in words if letter.isprintable())
    return SetupReport(plain[:_LONGEST_WORDS], is_final)


def _was_given_one(pod: PodRecord) -> bool:
    own = pod.own
    return own is not None and own.rank == 0 and own.has_setup and own.is_serving and not (pod.is_over or pod.deleting)
