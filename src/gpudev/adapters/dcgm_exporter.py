"""Asks all DCGM exporters behind one address, now and then, and only while somebody wants to know.

Whoever asks gets what was measured last and waits at most a moment for something newer. An exporter that does not
answer leaves out its node's GPUs and nothing else.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import httpx2
import structlog

from gpudev.adapters.dcgm.reading import parse_exporter
from gpudev.domain.errors import Invalid
from gpudev.domain.gpu_use import GpuUse
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock

log = structlog.get_logger(__name__)
_SCRAPE_INTERVAL = timedelta(seconds=10)
_MAX_SAMPLE_AGE = timedelta(minutes=2)
"""What is older says nothing about now."""
_TIMEOUT_SECONDS = 3.0
_WAIT_SECONDS = 0.5
_MAX_CONCURRENT = 32
_MAX_BYTES = 16 * 2**20


class DcgmUsage:
    """A GpuUsage. The address comes from the settings; it may stand for many exporters (a headless Service)."""

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
            self._log_problem(f"{urlsplit(self._url).hostname} is not found: {error.strerror}")
            return
        answers = await asyncio.gather(*(self._scrape(url, now) for url in urls))
        told = [answer for answer in answers if isinstance(answer, dict)]
        failures = [answer for answer in answers if isinstance(answer, str)]
        oldest = now - _MAX_SAMPLE_AGE
        kept = {pod: uses for pod, uses in self._samples.items() if uses and uses[0].at >= oldest}
        self._samples = kept | {pod: uses for answer in told for pod, uses in answer.items()}
        self._log_problem(f"{len(failures)} of {len(urls)}: {failures[0]}" if failures else None)

    async def _exporter_urls(self) -> list[str]:
        """One for each address that the name stands for."""
        parts = urlsplit(self._url)
        assert parts.hostname is not None  # the settings see to it
        port = parts.port or 80
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, proto=6)
        hosts = sorted({str(address[0]) for *_, address in found})
        names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        return [urlunsplit(parts._replace(netloc=name)) for name in names]

    async def _scrape(self, url: str, now: datetime) -> Mapping[str, Sequence[GpuUse]] | str:
        """What it told, or why nothing."""
        try:
            async with self._slots, asyncio.timeout(_TIMEOUT_SECONDS):
                return parse_exporter(await self._fetch(url), self._namespace, now)
        except (httpx2.HTTPError, TimeoutError, UnicodeDecodeError, Invalid) as error:
            return f"{url}: {error or type(error).__name__}"

    async def _fetch(self, url: str) -> str:
        body = bytearray()
        async with self._client.stream("GET", url, headers={"Host": urlsplit(self._url).netloc}) as answer:
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise Invalid("the answer does not end")
        return body.decode()

    def _log_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("dcgm.unavailable", problem=problem)
        self._problem = problem
