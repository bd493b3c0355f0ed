"""Sends pending notifications beside the planning loop, with retries for a day.

What is sent is decided in `planning.reservations.notifications`. Each is sent once; twice only if the sender died
before recording it, or the target accepted it without answering.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import structlog

from gpudev.domain.errors import Unavailable
from gpudev.domain.notifications import HISTORY_KINDS, NotificationKind
from gpudev.metrics import instruments
from gpudev.planning.reservations.notifications import compose_notification, next_attempt_at
from gpudev.ports.clock import Clock
from gpudev.ports.notifications import NotificationStore, Notifier, QueuedNotification
from gpudev.processor.workers import WorkLoop

log = structlog.get_logger(__name__)

_POLL_EVERY = timedelta(seconds=2)
_AT_ONCE = 20
_SEND_WITHIN = timedelta(seconds=60)
_LEASE = timedelta(minutes=5)
"""Longer than sending may take: after that, the sender is dead."""


class NotificationSender:
    def __init__(
        self,
        store: NotificationStore,
        notifier: Notifier,
        clock: Clock,
        kinds: Sequence[NotificationKind] = tuple(NotificationKind),
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._clock = clock
        self._kinds = [event_kind for kind in kinds for event_kind in HISTORY_KINDS[kind]]
        self._is_published = False

    async def run(self, is_planning: Callable[[], bool]) -> None:
        """Until cancelled. Only the processor with the planning lease sends."""
        await WorkLoop("notifications", partial(self._run_round, is_planning), rest=_POLL_EVERY).run()

    async def _run_round(self, is_planning: Callable[[], bool]) -> timedelta:
        self._is_published = self._is_published and is_planning()
        while is_planning() and await self.send_due():
            pass
        return _POLL_EVERY

    async def send_due(self) -> int:
        """The number of notifications tried."""
        if not self._is_published:
            await self._store.publish_targets(list(self._notifier.targets), self._kinds)
            self._is_published = True
        if not self._notifier.targets:
            return 0
        waiting = await self._store.claim(self._clock.now(), _LEASE, _AT_ONCE)
        await asyncio.gather(*(self._send(each) for each in waiting))
        return len(waiting)

    async def _send(self, waiting: QueuedNotification) -> None:
        notice = compose_notification(waiting.event, waiting.reservation, self._clock.now())
        if notice is None:
            await self._store.finish_notification(waiting.notification_id, "outdated")
            return
        about = {"reservation_id": str(waiting.reservation.reservation_id), "kind": notice.kind.value}
        where = self._notifier.targets.get(waiting.target, "?")
        if not self._notifier.can_reach(waiting.target, waiting.recipient):
            await self._store.finish_notification(waiting.notification_id, "given_up", "no address for its owner")
            log.info("notification.no_address", target=where, **about)
            return
        try:
            async with asyncio.timeout(_SEND_WITHIN.total_seconds()):
                await self._notifier.send(waiting.target, notice, waiting.recipient)
        except (Unavailable, TimeoutError) as error:
            await self._failed(waiting, str(error) or "it took too long", where, about)
        else:
            await self._store.finish_notification(waiting.notification_id, "sent")
            instruments.notifications.labels("sent").inc()
            log.info("notification.sent", target=where, attempts=waiting.attempts, **about)

    async def _failed(self, waiting: QueuedNotification, error: str, where: str, about: dict[str, str]) -> None:
        again = next_attempt_at(waiting.attempts, waiting.event.at, self._clock.now())
        instruments.notifications.labels("given_up" if again is None else "failed").inc()
        if again is None:
            await self._store.finish_notification(waiting.notification_id, "given_up", error)
            log.error("notification.given_up", target=where, attempts=waiting.attempts, error=error, **about)
        else:
            await self._store.postpone(waiting.notification_id, again, error)
            log.warning("notification.not_sent", target=where, attempts=waiting.attempts, error=error, **about)
