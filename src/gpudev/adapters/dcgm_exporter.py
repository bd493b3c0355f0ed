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

from gpudev.adapters.dcgm.reading import read_exporter
from gpudev.domain.errors import Invalid
from gpudev.domain.gpu_use import GpuUse
from gpudev.domain.reservations.reservation import Reservation
from gpudev.ports.clock import Clock

log = structlog.get_logger(__name__)
_FRESH_FOR = timedelta(seconds=10)
_TOLD_FOR = timedelta(minutes=2)
"""What is older says nothing about now."""
_ANSWER_WITHIN_SECONDS = 3.0
_WAIT_SECONDS = 0.5
_AT_ONCE = 32
_MOST_BYTES = 16 * 2**20


class DcgmUsage:
    """A GpuUsage. The address comes from the settings; it may stand for many exporters (a headless Service)."""

    def __init__(self, url: str, namespace: str, clock: Clock) -> None:
        self._url = url
        self._namespace = namespace
        self._clock = clock
        self._client = httpx2.AsyncClient(timeout=_ANSWER_WITHIN_SECONDS, follow_redirects=False)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._asked_at: datetime | None = None
        self._asking: asyncio.Task[None] | None = None
        self._known: dict[str, Sequence[GpuUse]] = {}
        self._problem: str | None = None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._client.aclose()

    async def of(self, reservation: Reservation) -> Sequence[GpuUse]:
        await self._refresh()
        oldest = self._clock.now() - _TOLD_FOR
        members = range(max(1, len(reservation.shares)))
        pods = [reservation.pod_name if rank == 0 else f"{reservation.pod_name}-{rank}" for rank in members]
        return [use for pod in pods for use in self._known.get(pod, ()) if use.at >= oldest]

    async def _refresh(self) -> None:
        now = self._clock.now()
        if self._asking is None and (self._asked_at is None or now - self._asked_at >= _FRESH_FOR):
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask_all(now), name="dcgm")
            self._asking.add_done_callback(self._asked)
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_WAIT_SECONDS)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is not None:
            log.error("dcgm.broken", exc_info=task.exception())

    async def _ask_all(self, now: datetime) -> None:
        try:
            urls = await self._exporters()
        except OSError as error:
            self._note_problem(f"{urlsplit(self._url).hostname} is not found: {error.strerror}")
            return
        answers = await asyncio.gather(*(self._ask(url, now) for url in urls))
        told = [answer for answer in answers if isinstance(answer, dict)]
        failures = [answer for answer in answers if isinstance(answer, str)]
        oldest = now - _TOLD_FOR
        kept = {pod: uses for pod, uses in self._known.items() if uses and uses[0].at >= oldest}
        self._known = kept | {pod: uses for answer in told for pod, uses in answer.items()}
        self._note_problem(f"{len(failures)} of {len(urls)}: {failures[0]}" if failures else None)

    async def _exporters(self) -> list[str]:
        """One for each address that the name stands for."""
        parts = urlsplit(self._url)
        assert parts.hostname is not None  # the settings see to it
        port = parts.port or 80
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, proto=6)
        hosts = sorted({str(address[0]) for *_, address in found})
        names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        return [urlunsplit(parts._replace(netloc=name)) for name in names]

    async def _ask(self, url: str, now: datetime) -> Mapping[str, Sequence[GpuUse]] | str:
        """What it told, or why nothing."""
        try:
            async with self._slots, asyncio.timeout(_ANSWER_WITHIN_SECONDS):
                return read_exporter(await self._fetch(url), self._namespace, now)
        except (httpx2.HTTPError, TimeoutError, UnicodeDecodeError, Invalid) as error:
            return f"{url}: {error or type(error).__name__}"

    async def _fetch(self, url: str) -> str:
        body = bytearray()
        async with self._client.stream("GET", url, headers={"Host": urlsplit(self._url).netloc}) as answer:
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise Invalid("the answer does not end")
        return body.decode()

    def _note_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("dcgm.unavailable", problem=problem)
        self._problem = problem
