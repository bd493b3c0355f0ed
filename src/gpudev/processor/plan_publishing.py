"""Publishes each GPU type's plan: when it says something new, and never so often that making it costs much."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudev.planning.queue.queue_cycle import PlanDraft
from gpudev.ports.reservations import Lease, PlanStore

_AT_LEAST_EVERY = timedelta(seconds=30)
_CHEAP_SECONDS = 0.01
_SHARE_OF_TIME = 20
"""A plan that is dear to make is made for at most a twentieth of the time."""


@dataclass(slots=True)
class _Published:
    made_at: datetime
    mark: object
    ended: float
    took: float


class PlanPublisher:
    def __init__(self, plans: PlanStore, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._plans = plans
        self._seconds = seconds
        self._drafts: dict[str, PlanDraft] = {}
        self._published: dict[str, _Published] = {}

    def reset(self) -> None:
        """Another processor may have published since."""
        self._drafts, self._published = {}, {}

    def set_draft(self, draft: PlanDraft) -> None:
        """What is to be published next, if it is worth it."""
        self._drafts[draft.gpu_type] = draft

    async def publish(self, lease: Lease) -> None:
        for gpu_type, draft in [*self._drafts.items()]:
            if not self._is_due(draft):
                continue
            began = self._seconds()
            plan = await asyncio.to_thread(draft.make) if draft.is_expensive else draft.make()
            ended = self._seconds()
            await self._plans.publish_plans(lease, [plan])
            self._published[gpu_type] = _Published(draft.made_at, draft.mark, ended, ended - began)
            del self._drafts[gpu_type]

    def _is_due(self, draft: PlanDraft) -> bool:
        last = self._published.get(draft.gpu_type)
        if last is None or not timedelta(0) <= draft.made_at - last.made_at < _AT_LEAST_EVERY:
            return True
        if draft.mark == last.mark:
            return False
        return last.took < _CHEAP_SECONDS or self._seconds() - last.ended >= _SHARE_OF_TIME * last.took
