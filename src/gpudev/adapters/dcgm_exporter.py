"""GPU usage of dev servers, from all DCGM exporters behind one address.

Exporters are scraped on demand, at most every ten seconds. A caller gets the last samples, and waits
only briefly for newer ones. If an exporter does not answer, only its node's GPUs are missing. Only samples that name a
pod of our namespace count; a GPU shared by several pods is returned for each of them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import httpx2
import structlog
from prometheus_client.parser import text_string_to_metric_families

from gpudev.domain.cluster import GpuUse
from gpudev.domain.errors import Invalid
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock

# Parsing of an exporter's metrics, in Prometheus' text format. Pure.


BUSY_PERCENT = "DCGM_FI_DEV_GPU_UTIL"
BUSY_SHARE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
"""The same from the GPU's own counters, 0 to 1. Partitioned GPUs (MIG) have only this."""
USED_MIB, FREE_MIB, RESERVED_MIB = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_METRICS = frozenset({BUSY_PERCENT, BUSY_SHARE, USED_MIB, FREE_MIB, RESERVED_MIB})
_MIB = 2**20
_GpuKey = tuple[str, str, str]


def parse_exporter(text: str, namespace: str, at: datetime) -> dict[str, list[GpuUse]]:
    """By pod. Raises Invalid for invalid metrics."""
    found: defaultdict[tuple[str, _GpuKey], dict[str, float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(text):
            if family.name not in _METRICS:
                continue
            for sample in family.samples:
                pod = _own_pod(sample.labels, namespace)
                if pod is not None:
                    found[pod, _gpu_key(sample.labels)][sample.name] = sample.value
    except ValueError as error:
        raise Invalid(f"invalid metrics of a DCGM exporter: {error}") from error
    by_pod: defaultdict[str, list[GpuUse]] = defaultdict(list)
    for (pod, gpu), values in sorted(found.items()):
        by_pod[pod].append(_gpu_use(gpu, values, at))
    return dict(by_pod)


def _own_pod(labels: Mapping[str, str], namespace: str) -> str | None:
    """Older exporters have other label names; Prometheus puts `exported_` before the names of samples it relays."""
    for prefix in ("", "exported_", "pod_"):
        pod = labels.get("pod_name" if prefix == "pod_" else f"{prefix}pod")
        pod_namespace = labels.get("pod_namespace" if prefix == "pod_" else f"{prefix}namespace")
        if pod and pod_namespace == namespace:
            return pod
    return None


def _gpu_key(labels: Mapping[str, str]) -> _GpuKey:
    mig_id = labels.get("GPU_I_ID")
    return labels.get("Hostname", ""), labels.get("gpu", "?"), f"/{mig_id}" if mig_id else ""


def _gpu_use(gpu: _GpuKey, values: Mapping[str, float], at: datetime) -> GpuUse:
    node, number, mig_suffix = gpu
    busy = values[BUSY_PERCENT] / 100 if BUSY_PERCENT in values else values.get(BUSY_SHARE)
    used, free = values.get(USED_MIB), values.get(FREE_MIB)
    total = None if used is None or free is None else used + free + values.get(RESERVED_MIB, 0.0)
    return GpuUse(
        gpu=f"{number}{mig_suffix}",
        node=node,
        at=at,
        busy=None if busy is None else min(1.0, max(0.0, busy)),
        memory_used_bytes=None if used is None else round(used * _MIB),
        memory_total_bytes=None if total is None else round(total * _MIB),
    )


log = structlog.get_logger(__name__)
_SCRAPE_INTERVAL = timedelta(seconds=10)
_MAX_SAMPLE_AGE = timedelta(minutes=2)
"""Older samples are dropped."""
_TIMEOUT_SECONDS = 3.0
_WAIT_SECONDS = 0.5
_MAX_CONCURRENT = 32
_MAX_BYTES = 16 * 2**20


class DcgmUsage:
    """A GpuUsage. The URL comes from the settings; its name may resolve to many exporters (a headless Service)."""

    def __init__(self, url: str, namespace: str, clock: Clock) -> None:
        self._url = url
        self._namespace = namespace
        self._clock = clock
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, follow_redirects=False)
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._scraped_at: datetime | None = None
        self._scrape_task: asyncio.Task[None] | None = None
        self._samples: dict[str, Sequence[GpuUse]] = {}
        self._problem: str | None = None

    async def close(self) -> None:
        if self._scrape_task is not None:
            self._scrape_task.cancel()
            await asyncio.gather(self._scrape_task, return_exceptions=True)
        await self._client.aclose()

    async def find_usage(self, reservation: Reservation) -> Sequence[GpuUse]:
        await self._refresh_samples()
        oldest = self._clock.now() - _MAX_SAMPLE_AGE
        members = range(max(1, len(reservation.shares)))
        pods = [reservation.pod_name if rank == 0 else f"{reservation.pod_name}-{rank}" for rank in members]
        return [use for pod in pods for use in self._samples.get(pod, ()) if use.at >= oldest]

    async def _refresh_samples(self) -> None:
        now = self._clock.now()
        if self._scrape_task is None and (self._scraped_at is None or now - self._scraped_at >= _SCRAPE_INTERVAL):
            self._scraped_at = now
            self._scrape_task = asyncio.create_task(self._scrape_all(now), name="dcgm")
            self._scrape_task.add_done_callback(self._finish_scrape)
        if self._scrape_task is not None:
            await asyncio.wait({self._scrape_task}, timeout=_WAIT_SECONDS)

    def _finish_scrape(self, task: "asyncio.Task[None]") -> None:
        self._scrape_task = None
        if not task.cancelled() and task.exception() is not None:
            log.error("dcgm.broken", exc_info=task.exception())

    async def _scrape_all(self, now: datetime) -> None:
        try:
            urls = await self._exporter_urls()
        except OSError as error:
            self._log_problem(f"{urlsplit(self._url).hostname} not found: {error.strerror}")
            return
        results = await asyncio.gather(*(self._scrape(url, now) for url in urls))
        scraped = [result for result in results if isinstance(result, dict)]
        failures = [result for result in results if isinstance(result, str)]
        oldest = now - _MAX_SAMPLE_AGE
        kept = {pod: uses for pod, uses in self._samples.items() if uses and uses[0].at >= oldest}
        self._samples = kept | {pod: uses for result in scraped for pod, uses in result.items()}
        self._log_problem(f"{len(failures)} of {len(urls)}: {failures[0]}" if failures else None)

    async def _exporter_urls(self) -> list[str]:
        """One for each address that the name resolves to."""
        parts = urlsplit(self._url)
        assert parts.hostname is not None  # the settings have checked it
        port = parts.port or 80
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, proto=6)
        hosts = sorted({str(address[0]) for *_, address in found})
        names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        return [urlunsplit(parts._replace(netloc=name)) for name in names]

    async def _scrape(self, url: str, now: datetime) -> Mapping[str, Sequence[GpuUse]] | str:
        """Samples by pod, or the reason why there are none."""
        try:
            async with self._slots, asyncio.timeout(_TIMEOUT_SECONDS):
                return parse_exporter(await self._fetch(url), self._namespace, now)
        except (httpx2.HTTPError, TimeoutError, UnicodeDecodeError, Invalid) as error:
            return f"{url}: {error or type(error).__name__}"

    async def _fetch(self, url: str) -> str:
        body = bytearray()
        async with self._client.stream("GET", url, headers={"Host": urlsplit(self._url).netloc}) as response:
            response.raise_for_status()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Invalid(f"the response is longer than {_MAX_BYTES} bytes")
        return body.decode()

    def _log_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("dcgm.unavailable", problem=problem)
        self._problem = problem
