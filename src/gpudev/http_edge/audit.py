"""What goes into the audit log, and how it gets there without anybody waiting for it.

Entries are gathered in memory and written together, a few times a second, in one statement: a submit pays nothing for
being recorded. A clean stop writes all of them first. A process that is killed loses the last moment's entries; what
was done is then still in the histories of reservations and disks, and the request in the log.
While the database is away, entries wait; refusals beyond what one address may fill are counted and told as one entry.
"""

import asyncio
import contextlib
from collections import Counter, deque
from dataclasses import asdict

import structlog

from gpudev.domain.errors import Unavailable
from gpudev.http_edge.rate_limits import TokenBuckets, neighbourhood
from gpudev.ports.auditing import AuditEntry, AuditLog
from gpudev.ports.clock import Clock

log = structlog.get_logger()
WRITE_EVERY_S = 0.25
_MOST_AT_ONCE = 500
_MOST_WAITING = 20_000
_LAST_CHANCE_S = 5.0
_REFUSALS, _REFUSALS_PER_MINUTE = 60, 30


class AuditTrail:
    def __init__(self, audit_log: AuditLog, clock: Clock, every_s: float = WRITE_EVERY_S) -> None:
        self._log = audit_log
        self._clock = clock
        self._every_s = every_s
        self._waiting: deque[AuditEntry] = deque()
        self._refusals = TokenBuckets(_REFUSALS, _REFUSALS_PER_MINUTE)
        self._left_out: Counter[str] = Counter()
        self._something = asyncio.Event()
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
            async with asyncio.timeout(_LAST_CHANCE_S):
                await self.flush()
        except (Unavailable, TimeoutError):
            for entry in self._waiting:
                log.error("audit.unwritten", **_fields(entry))

    def note(self, entry: AuditEntry) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            log.error("audit.unwritten", **_fields(entry))
            return
        self._waiting.append(entry)
        self._something.set()

    def note_refusal(self, entry: AuditEntry) -> None:
        """Anybody can cause these, as many as they like; so one address fills only so much."""
        whose = neighbourhood(entry.address)
        if self._refusals.take(whose):
            self._left_out[whose] += 1
        else:
            self.note(entry)

    async def flush(self) -> None:
        """Raises Unavailable; nothing is lost by that."""
        async with self._writing:
            for whose, count in self._left_out.items():
                summary = AuditEntry(self._clock.now(), "refusals", "left_out", target=f"{count} more", address=whose)
                self._waiting.append(summary)
            self._left_out.clear()
            while self._waiting:
                batch = [self._waiting[at] for at in range(min(_MOST_AT_ONCE, len(self._waiting)))]
                await self._log.append(batch)
                for _ in batch:
                    self._waiting.popleft()

    async def _run(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            await asyncio.sleep(self._every_s)  # others may come along
            try:
                # Not to be cut off half-way: it would be unknown whether these are written.
                await _finish(asyncio.ensure_future(self.flush()))
            except Unavailable as error:
                log.warning("audit.waiting", entries=len(self._waiting), error=str(error))
                self._something.set()
                await asyncio.sleep(1)


async def _finish(writing: "asyncio.Future[None]") -> None:
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        with contextlib.suppress(Unavailable):
            await writing
        raise


def _fields(entry: AuditEntry) -> dict[str, object]:
    return asdict(entry) | {"at": entry.at.isoformat()}
