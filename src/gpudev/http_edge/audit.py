"""The audit trail: writes audit entries in the background, so that no request waits for them.

Entries are collected in memory and written in batches, a few times a second. A clean stop writes all of them first. A
killed process loses the entries of the last moment; the changes are then still in the histories of reservations and
disks, and the requests in the log. While the database is down, entries wait. Denied requests beyond a limit per address
are counted and summarised in one entry.
"""

import asyncio
import contextlib
from collections import Counter, deque
from dataclasses import asdict, dataclass
from datetime import datetime

import structlog

from gpudev.domain.errors import Unavailable
from gpudev.http_edge.rate_limits import TokenBuckets, rate_limit_key
from gpudev.ports.access import AuditEntry, AuditLog
from gpudev.ports.clock import Clock

log = structlog.get_logger()
WRITE_EVERY_S = 0.25
_BATCH_SIZE = 500
_MAX_PENDING = 20_000
_CLOSE_SECONDS = 5.0
_DENIED_BURST, _DENIED_PER_MINUTE = 60, 30


@dataclass(frozen=True, slots=True)
class ProxyClient:
    """A client of the proxy, whether it gets a session or not."""

    address: str | None
    request_id: str

    def audit_entry(
        self,
        at: datetime,
        action: str,
        outcome: str,
        *,
        username: str | None = None,
        target: str | None = None,
        status: int | None = None,
    ) -> AuditEntry:
        return AuditEntry(
            at=at,
            action=action,
            outcome=outcome,
            username=username,
            target=target,
            address=self.address,
            status=status,
            request_id=self.request_id,
        )


class AuditTrail:
    def __init__(self, audit_log: AuditLog, clock: Clock, every_s: float = WRITE_EVERY_S) -> None:
        self._log = audit_log
        self._clock = clock
        self._every_s = every_s
        self._pending: deque[AuditEntry] = deque()
        self._denied_limits = TokenBuckets(_DENIED_BURST, _DENIED_PER_MINUTE)
        self._omitted: Counter[str] = Counter()
        self._has_entries = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="audit")

    async def close(self) -> None:
        """Writes the remaining entries. Those that cannot be written go to the log."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.flush()
        except (Unavailable, TimeoutError):
            for entry in self._pending:
                log.error("audit.unwritten", **_fields(entry))

    def record(self, entry: AuditEntry) -> None:
        if len(self._pending) >= _MAX_PENDING:
            log.error("audit.unwritten", **_fields(entry))
            return
        self._pending.append(entry)
        self._has_entries.set()

    def record_denied(self, entry: AuditEntry) -> None:
        """Limited per address: any client can cause these at will."""
        client = rate_limit_key(entry.address)
        if self._denied_limits.take(client):
            self._omitted[client] += 1
        else:
            self.record(entry)

    async def flush(self) -> None:
        """Raises Unavailable; the entries are then kept."""
        async with self._writing:
            for client, count in self._omitted.items():
                summary = AuditEntry(self._clock.now(), "refusals", "left_out", target=f"{count} more", address=client)
                self._pending.append(summary)
            self._omitted.clear()
            while self._pending:
                batch = [self._pending[at] for at in range(min(_BATCH_SIZE, len(self._pending)))]
                await self._log.append(batch)
                for _ in batch:
                    self._pending.popleft()

    async def _run(self) -> None:
        while True:
            await self._has_entries.wait()
            self._has_entries.clear()
            await asyncio.sleep(self._every_s)  # collects a batch
            try:
                # Not cancelled during a write: it would be unknown whether the entries were written.
                await _finish_write(asyncio.ensure_future(self.flush()))
            except Unavailable as error:
                log.warning("audit.waiting", entries=len(self._pending), error=str(error))
                self._has_entries.set()
                await asyncio.sleep(1)


async def _finish_write(writing: "asyncio.Future[None]") -> None:
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        with contextlib.suppress(Unavailable):
            await writing
        raise


def _fields(entry: AuditEntry) -> dict[str, object]:
    return asdict(entry) | {"at": entry.at.isoformat()}
