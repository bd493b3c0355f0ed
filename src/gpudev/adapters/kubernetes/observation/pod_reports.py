"""Reports of pods, fetched in the background: crash logs and results of personalization.

No observation waits for them. Our program in the pod reports the progress of personalization; it is polled until that
has ended, and only in pods that have any. Reports are untrusted text: users have root in the pod.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

import structlog

from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.objects.pod_manifest import DEV_CONTAINER, DEVSERVER_BINARY
from gpudev.domain.backoff import growing_pauses
from gpudev.domain.errors import ClusterError, GpuDevError
from gpudev.domain.untrusted_json import parse_untrusted_json
from gpudev.keyed_tasks import KeyedTasks

log = structlog.get_logger(__name__)

_MAX_CONCURRENT_REPORTS = 20
_REPORT_WAIT_S = 3
_REPORT_TIMEOUT = timedelta(seconds=_REPORT_WAIT_S + 7)
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0
_MAX_REPORT_BYTES = 16 * 1024
_MAX_SUMMARY_LENGTH = 1000
_INVALID_REPORT = "the dev server sent an invalid personalization report"


@dataclass(frozen=True, slots=True)
class PodPersonalizationReport:
    summary: str
    is_final: bool


class PodPersonalizationReports:
    def __init__(self, api: KubernetesApi, on_change: Callable[[], None]) -> None:
        """`on_change` is called after a new report."""
        self._api = api
        self._on_change = on_change
        self._reports: dict[str, PodPersonalizationReport] = {}
        self._fetching = KeyedTasks[str, None]("personalization of")
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REPORTS)

    def find_summary(self, parts: ServerParts) -> str | None:
        """The report so far; None: no personalization, or no report yet. Cheap, because every observation calls it."""
        pod = next((pod for pod in parts.pods if _has_personalization(pod)), None)
        if pod is None:
            return None
        known = self._reports.get(pod.uid)
        if known is None or not known.is_final:
            self._fetching.start(pod.uid, lambda: self._fetch_until_final(pod))
        return known.summary or None if known is not None else None

    def retain_only(self, uids: Collection[str]) -> None:
        for uid in self._reports.keys() - uids:
            del self._reports[uid]
        self._fetching.cancel_all_but(uids)

    async def close(self) -> None:
        await self._fetching.close()

    async def _fetch_until_final(self, pod: PodRecord) -> None:
        pauses = growing_pauses(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while (report := await self._fetch(pod)) is None or not report.is_final:
            self._record_report(pod.uid, report)
            await asyncio.sleep(next(pauses))
        self._record_report(pod.uid, report)

    async def _fetch(self, pod: PodRecord) -> PodPersonalizationReport | None:
        argv = [DEVSERVER_BINARY, "settled", "--within", f"{_REPORT_WAIT_S}s"]
        try:
            async with self._slots:
                output = await self._api.exec_in_pod(
                    pod.name, DEV_CONTAINER, argv, timeout=_REPORT_TIMEOUT, max_bytes=_MAX_REPORT_BYTES
                )
            return parse_report(output)
        except GpuDevError as error:
            log.info("personalization_report.unavailable", pod=pod.name, error=str(error))
            return None

    def _record_report(self, uid: str, report: PodPersonalizationReport | None) -> None:
        if report is not None and report != self._reports.get(uid):
            self._reports[uid] = report
            self._on_change()


def parse_report(output: bytes) -> PodPersonalizationReport:
    """Raises ClusterError for an invalid report."""
    try:
        data = parse_untrusted_json(output)
        summary, is_final = data["words"], data["final"]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(_INVALID_REPORT) from error
    if not isinstance(summary, str) or not isinstance(is_final, bool):
        raise ClusterError(_INVALID_REPORT)
    printable = "".join(letter for letter in summary if letter.isprintable())
    return PodPersonalizationReport(printable[:_MAX_SUMMARY_LENGTH], is_final)


def _has_personalization(pod: PodRecord) -> bool:
    member = pod.member
    return (
        member is not None
        and member.rank == 0
        and member.has_personalization
        and member.is_serving
        and not (pod.is_over or pod.is_deleting)
    )


# Crash logs: the last log lines of failed pods, fetched once per failure.


_CRASH_LOG_LINES = 12
_MAX_CRASH_LOG_LENGTH = 2000
_CRASH_LOG_TIMEOUT_S = 3.0


class CrashLogs:
    def __init__(self, api: KubernetesApi, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a log has come, or will not come."""
        self._api = api
        self._on_change = on_change
        self._logs: dict[str, str] = {}
        self._fetching = KeyedTasks[str, None]("crash log of")

    def find_crash_log(self, uid: str, pod: str, container: str) -> str | None:
        """None: not known yet; `on_change` will be called. Empty: there is no log."""
        if uid not in self._logs:
            self._fetching.start(uid, lambda: self._fetch(uid, pod, container))
        return self._logs.get(uid)

    def retain_only(self, uids: Collection[str]) -> None:
        for uid in self._logs.keys() - uids:
            del self._logs[uid]

    async def close(self) -> None:
        await self._fetching.close()

    async def _fetch(self, uid: str, pod: str, container: str) -> None:
        text = ""
        try:
            async with asyncio.timeout(_CRASH_LOG_TIMEOUT_S):
                text = await self._api.find_pod_log(pod, container, _CRASH_LOG_LINES) or ""
        except (GpuDevError, TimeoutError) as error:
            log.info("crash_log.unavailable", pod=pod, error=str(error) or "timeout")
        self._logs[uid] = text.strip()[-_MAX_CRASH_LOG_LENGTH:]
        self._on_change()
