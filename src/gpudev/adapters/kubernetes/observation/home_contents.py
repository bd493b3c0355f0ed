"""Contents of a dev server's home, as listed by our program in its pod.

The listing comes from a running pod within seconds, from the log of one whose command has ended, or not at all. Volumes
of clouds cannot be read from outside. It is untrusted: users have root in the pod, so every field is validated.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from gpudev.adapters.kubernetes.cache.object_records import PodRecord, ServerParts
from gpudev.adapters.kubernetes.client.kubernetes_api import KubernetesApi
from gpudev.adapters.kubernetes.objects.pod_manifest import DEV_CONTAINER, DEVSERVER_BINARY
from gpudev.domain.disks.contents import Contents, DiskEntry, DiskEntryKind
from gpudev.domain.errors import ClusterError, GpuDevError, Unavailable
from gpudev.domain.untrusted_json import parse_untrusted_json

log = structlog.get_logger(__name__)
MAX_ENTRIES = 1000
_LIST_TIMEOUT_S = 5
_EXEC_TIMEOUT = timedelta(seconds=_LIST_TIMEOUT_S + 3)
"""The program stops earlier; this timeout is for a pod that does not answer."""
LISTING_LINE_PREFIX = "home.listed "
"""Starts the log line that contains a listing. Our program in the pod writes the same prefix."""
_LOG_TAIL_LINES = 10
_MAX_BYTES = 4 * 1024 * 1024
_MAX_SIZE = 2**63


async def find_home_contents(api: KubernetesApi, parts: ServerParts) -> Contents | None:
    """None: the contents cannot be listed."""
    pod = next((pod for pod in parts.pods if _has_disk(pod)), None)
    if pod is None:
        return None
    try:
        output = await (_find_listing_in_log(api, pod) if pod.is_over else _list_in_running_pod(api, pod))
        return None if output is None else parse_contents(output)
    except GpuDevError as error:
        log.info("home_contents.unavailable", pod=pod.name, error=str(error))
        return None


async def _list_in_running_pod(api: KubernetesApi, pod: PodRecord) -> bytes | None:
    if pod.node is None or pod.member is None or pod.member.phase != "Running":
        return None
    argv = [DEVSERVER_BINARY, "list", "--entries", str(MAX_ENTRIES), "--within", f"{_LIST_TIMEOUT_S}s"]
    return await api.exec_in_pod(pod.name, DEV_CONTAINER, argv, timeout=_EXEC_TIMEOUT, max_bytes=_MAX_BYTES)


async def _find_listing_in_log(api: KubernetesApi, pod: PodRecord) -> bytes | None:
    """A dev server whose command has ended writes its listing at the end of its log."""
    try:
        async with asyncio.timeout(_EXEC_TIMEOUT.total_seconds()):
            text = await api.find_pod_log(pod.name, DEV_CONTAINER, _LOG_TAIL_LINES, max_bytes=_MAX_BYTES)
    except TimeoutError as error:
        raise Unavailable("the pod's log did not arrive in time") from error
    lines = [line for line in (text or "").splitlines() if line.startswith(LISTING_LINE_PREFIX)]
    return lines[-1].removeprefix(LISTING_LINE_PREFIX).encode() if lines else None


def parse_contents(output: bytes) -> Contents:
    """Raises ClusterError for an invalid listing."""
    try:
        data = parse_untrusted_json(output, _MAX_BYTES)
        entries = tuple(_parse_entry(*entry) for entry in data["entries"])
        if len(entries) > MAX_ENTRIES:
            raise ValueError(f"too many entries (expected at most {MAX_ENTRIES})")
        if not isinstance(data["counted"], bool):
            raise ValueError("invalid 'counted' (expected true or false)")
        files, folders, size_bytes = (_parse_size(data[name]) for name in ("files", "folders", "size_bytes"))
        return Contents(files, folders, size_bytes, entries, data["counted"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ClusterError(f"the dev server sent an invalid listing: {error}") from error


def _parse_entry(path: Any, kind: Any, size: Any, modified_at: Any) -> DiskEntry:
    if not isinstance(path, str) or "\0" in path:
        raise ValueError("invalid path (expected text without NUL)")
    return DiskEntry(path, DiskEntryKind(kind), _parse_size(size), datetime.fromisoformat(modified_at).astimezone(UTC))


def _parse_size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_SIZE:
        raise ValueError(f"invalid size {str(value)[:40]!r}")
    return value


def _has_disk(pod: PodRecord) -> bool:
    """Rank 0 has the disk. A pod that is being deleted may stop at any moment and is skipped."""
    return pod.member is not None and pod.member.rank == 0 and not pod.is_deleting
