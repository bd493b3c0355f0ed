"""Audit entries, written in the background: nobody waits for them.

Entries are gathered in memory and written together, a few times a second, in one statement: a submit pays nothing for
being recorded. A clean stop writes all of them first. A process that is killed loses the last moment's entries; what
was done is then still in the histories of reservations and disks, and the request in the log.
While the database is away, entries wait; refusals beyond what one address may fill are counted and told as one entry.
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
    """Whoever asks to be let through, and is or is not."""

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
        """What they did, for the audit log."""
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
        """Writes what is left. What cannot be written by then goes to the log, so that it is somewhere."""
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
        """Anybody can cause these, as many as they like; so one address fills only so much."""
        whose = rate_limit_key(entry.address)
        if self._denied_limits.take(whose):
            self._omitted[whose] += 1
        else:
            self.record(entry)

    async def flush(self) -> None:
        """Raises Unavailable; nothing is lost by that."""
        async with self._writing:
            for whose, count in self._omitted.items():
                summary = AuditEntry(self._clock.now(), "refusals", "left_out", target=f"{count} more", address=whose)
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
            await asyncio.sleep(self._every_s)  # others may come along
            try:
                # Not to be cut off half-way: it would be unknown whether these are written.
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
